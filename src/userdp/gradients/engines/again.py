"""One unit of a pass once more, in its place, with the masks that it had there, beside nobody.

Copies of the unit stand in all other places, and the generators begin from the states from which
the pass began: each mask is a matter of shapes and places, so the unit sees its own again.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from userdp.errors import FailureError
from userdp.gradients.engines.passes import Pass, PassShape
from userdp.gradients.losses import Loss, row_losses
from userdp.gradients.model_randomness import GeneratorStates
from userdp.gradients.units import Units


def with_copies(units: Units, place: int, kept: Sequence[int]) -> Units:
    """``units``, of one shape, with copies of the one in ``place`` where they are not ``kept``."""
    counts = units.offsets.diff()
    shape = PassShape(len(units), int(counts[place]), units.input_ids.shape[1])
    assert bool((counts == shape.rows).all())
    numbers = tuple(unit if unit in kept else place for unit in range(len(units)))
    return Pass(numbers, tuple(range(len(units))), shape).of(units)


class InPlace:
    """A loss for one unit's rows, computed in its place of the pass, under the pass's masks.

    It takes the rows from the pass, in order, and of its arguments only how many are due.

    Args:
        loss: of the pass.
        units: of the pass.
        unit: which one.
        begin: the generators' states when the pass began.
    """

    def __init__(self, loss: Loss, units: Units, unit: int, begin: GeneratorStates) -> None:
        self._loss, self._begin = loss, begin
        self._units = with_copies(units, unit, ())
        self._at = int(units.offsets[unit])

    def __call__(
        self,
        model: nn.Module,
        input_ids: Tensor,
        lengths: Tensor,
        targets: Tensor | None = None,
    ) -> Tensor:
        self._begin.load()
        losses = row_losses(self._loss, model, *self._units.all_rows())
        here = slice(self._at, self._at + len(lengths))
        self._at += len(lengths)
        return losses[here]


def require_same_states(end: GeneratorStates) -> None:
    """Refuse a repeated pass that did not draw what the first one drew.

    Raises:
        FailureError: it did not.
    """
    if GeneratorStates.read() != end:
        raise FailureError(
            "a pass that was computed twice drew other random numbers the second time, so the "
            "norm and the gradient of a user would not be of the same dropout masks; training "
            "stopped before this update",
            hint="take --engine reference, or set dropout to 0",
        )
