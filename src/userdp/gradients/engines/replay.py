"""One unit of a pass once more, under the masks that it had there.

A batched engine may have to compute some units again: their norm cannot be formed in float32, or a
layer turned out to have no rule. *That* it must may depend on what the masks were, and on who else
sat in the pass. With new masks the others' masks would then have been selected by what u did:
those that it took part in throwing away are not those that would have stayed without it. So masks
are kept: the pass runs again from the generators' first states, with as many rows of the same
lengths, in which every other unit's tokens are replaced by made-up ones (an infinity of theirs
could reach the unit's gradient through a sum over rows, as 0 times infinity). Each mask is a matter
of shapes, so the unit sees its own again.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from userdp.errors import FailureError
from userdp.gradients.engines import reference
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.passes import Pass, PassShape
from userdp.gradients.losses import Loss, row_losses
from userdp.gradients.model_randomness import GeneratorStates
from userdp.gradients.modes import eagerly
from userdp.gradients.sums import ClippedSum
from userdp.gradients.units import Units
from userdp.out_of_memory import ran_out_of_memory


def with_copies(units: Units, place: int, kept: Sequence[int]) -> Units:
    """``units``, of one shape, with copies of the one in ``place`` where they are not ``kept``."""
    counts = units.offsets.diff()
    shape = PassShape(len(units), int(counts[place]), units.input_ids.shape[1])
    assert bool((counts == shape.rows).all())
    numbers = (unit if unit in kept else place for unit in range(len(units)))
    return Pass(tuple(numbers), shape).of(units)


class _Replayed:
    """A loss for one unit's rows, computed among the rows of the pass, under the pass's masks.

    It takes the rows from the pass, in order, and of its arguments only how many are due.
    """

    def __init__(
        self, loss: Loss, units: Units, unit: int, begin: GeneratorStates, end: GeneratorStates
    ) -> None:
        self._loss, self._begin, self._end = loss, begin, end
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
        require_same_states(self._end)
        here = slice(self._at, self._at + len(lengths))
        self._at += len(lengths)
        return losses[here]


def clipped_again(
    aimed: Task, units: Units, unit: int, begin: GeneratorStates, end: GeneratorStates
) -> ClippedSum:
    """Unit ``unit`` of a pass over ``units``, by the reference engine, under its masks.

    Args:
        aimed: the task, at the norm that the engine clips at.
        units: all of the pass.
        unit: which one.
        begin: the generators' states when the pass began.
        end: and when it had ended.

    Raises:
        FailureError: the pass drew something else this time, so that masks differ; or memory ran
            out.
    """
    replayed = aimed.but(
        loss=_Replayed(aimed.loss, units, unit, begin, end),
        units=units.select(unit, unit + 1),
        micro_batch=len(units.lengths),
    )
    try:
        with eagerly():  # as in the pass
            total = reference.sum_of_units(replayed)
        end.load()  # the next pass draws what it would have drawn
        return total
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        # Not halved (`engines.room`): that it came to this pass may have been its masks' doing, and
        # new ones for all would then be chosen by what this unit did.
        raise FailureError(
            "memory ran out while a user's gradient was computed again under the same dropout "
            "masks; training stopped before this update",
            hint="take --engine reference, set dropout to 0, or go on with more memory",
        ) from None


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
