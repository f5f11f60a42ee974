"""`ClippedSum`: what every gradient engine returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from userdp.gradients.modes import told


@dataclass(kw_only=True, slots=True)
class ClippedSum:
    """The sum over units of their clipped gradients, before noise.

    Guarantee: adding or removing one unit moves ``value`` by at most ``sensitivity`` in L2,
    rounding included, up to `userdp.gradients.clipping.MOST_UNITS` units.

    Attributes:
        value: float64 by trainable parameter name, each tensor once however often it is tied.
            Float64 because the rounding of the *summation* belongs to the sensitivity. (A batched
            engine may keep it in float32 while it computes: `userdp.gradients.engines.rounding`.)
            Round to the parameter's dtype only after the noise has been added: then it is
            post-processing.
        norms: float64, (units,); each unit's norm before the unit clip. Operator-only.
        losses: float64, (units,); each unit's mean loss. Operator-only.
        sensitivity: the ``l2_clip_norm`` that was asked for.
        non_finite: units that counted as zero for a NaN or infinite gradient. Operator-only.
        failed: units that counted as zero since their rows made the model or the loss raise an
            error (`losses.may_be_of_rows`); their norm and loss are NaN. Operator-only.
        halvings: how often memory ran out, and passes were halved, before this was computed anew
            (`userdp.gradients.engines.engine`). Operator-only.
        pending: numbers of units that were added before anybody knew of them, and what waits until
            the device tells; see `settle`.
    """

    value: dict[str, Tensor]
    norms: Tensor
    losses: Tensor
    sensitivity: float
    non_finite: int = 0
    failed: int = 0
    halvings: int = 0
    pending: list[tuple[list[int], Callable[[], Tensor]]] = field(default_factory=list)

    def settle_later(
        self, numbers: list[int], losses: Tensor, squares: Tensor, usable: Tensor
    ) -> None:
        """Note units of a pass that was added; the host does not wait for what they are.

        Args:
            numbers: of the units.
            losses: their mean losses, float64.
            squares: of their norms, float64.
            usable: whether each of the pass, copies too, could be added as it was.
        """
        every = torch.cat([losses, squares.sqrt(), usable.all()[None].double()])
        self.pending.append((numbers, told(every)))

    def settle(self) -> bool:
        """Take in what the device tells of the units that are pending.

        The host waits until it is known; what is left to be added may come later.

        Returns:
            Whether each of them could be added as it was. If not, this sum is worth nothing: a NaN
            times a factor of 0 is a NaN.
        """
        for numbers, arrived in self.pending:
            found = arrived()
            if not found[-1]:
                return False
            self.losses[numbers], self.norms[numbers] = found[:-1].chunk(2)
        self.pending.clear()
        return True

    def widen(self) -> None:
        """Make ``value`` float64, one parameter after another: no second copy of all lives."""
        for name, value in self.value.items():
            self.value[name] = value.double()

    def append(self, more: ClippedSum) -> None:
        """Add the sum of other units, whose norms and losses come behind those that are here."""
        for name, value in more.value.items():
            self.value[name] += value
        self.norms = torch.cat([self.norms, more.norms])
        self.losses = torch.cat([self.losses, more.losses])
        self.non_finite += more.non_finite
        self.failed += more.failed
        self.sensitivity = max(self.sensitivity, more.sensitivity)
        self.halvings += more.halvings
