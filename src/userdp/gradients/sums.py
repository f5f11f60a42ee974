"""`ClippedSum`: what every gradient engine returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import torch
from torch import Tensor

from userdp.gradients.modes import told
from userdp.gradients.shards import zeros_like_parts


class Pending(NamedTuple):
    """What a device has yet to tell of some units.

    Attributes:
        numbers: of the units.
        told: waits for it: their mean losses, their norms, and whether all of the pass, copies too,
            could be added as they were; float64, (2 x units + 1,).
    """

    numbers: Sequence[int]
    told: Callable[[], Tensor]

    @classmethod
    def of(cls, numbers: Sequence[int], losses: Tensor, squares: Tensor, usable: Tensor) -> Self:
        """Tensors of the units, but for ``usable``, which is of all in the pass."""
        return cls(numbers, told(torch.cat([losses, squares.sqrt(), usable.all()[None].double()])))


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
        non_finite: units that counted as zero for a NaN or infinite gradient. Operator-only.
        sensitivity: the ``l2_clip_norm`` that was asked for.
        failed: units that counted as zero since their rows made the model or the loss raise an
            error (`losses.may_be_of_rows`); their norm and loss are NaN. Operator-only.
        halvings: how often memory ran out, and passes were halved, before this was computed anew
            (`userdp.gradients.engines.room`). Operator-only.
        pending: of units that were added before anybody knew of them; see `settle`.
    """

    value: dict[str, Tensor]
    norms: Tensor
    losses: Tensor
    non_finite: int
    sensitivity: float
    failed: int = 0
    halvings: int = 0
    pending: list[Pending] = field(default_factory=list)

    @classmethod
    def zero(
        cls,
        parameters: Mapping[str, Tensor],
        units: int,
        *,
        sensitivity: float,
        dtype: torch.dtype = torch.float64,
    ) -> Self:
        """The sum to which none of ``units`` units has been added yet.

        Args:
            parameters: the trainable ones, by name; of a sharded one this process's part is summed.
            units: how many norms and losses there will be.
            sensitivity: see the class.
            dtype: of ``value`` until `widen`.
        """
        return cls(
            value=zeros_like_parts(parameters, dtype),
            norms=torch.zeros(units, dtype=torch.float64),
            losses=torch.zeros(units, dtype=torch.float64),
            non_finite=0,
            sensitivity=float(sensitivity),
        )

    def settle(self) -> bool:
        """Take in what the device tells of the units that are pending.

        The host waits until it is known; what is left to be added may come later.

        Returns:
            Whether each of them could be added as it was. If not, this sum is worth nothing: a NaN
            times a factor of 0 is a NaN.
        """
        for one in self.pending:
            numbers, found = list(one.numbers), one.told()
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
