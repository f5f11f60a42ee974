"""Engines: ways to compute the same clipped sum, from the slow oracle to one backward pass.

`get_engine` names them. All share one signature and one contract test-suite.
"""

from __future__ import annotations

from typing import Protocol

from torch import nn

from userdp.errors import UseError
from userdp.gradients import reference
from userdp.gradients.engines import auto, bookkeeping, lora, vmap
from userdp.gradients.losses import Loss
from userdp.gradients.rules import FLAT, ClipRule
from userdp.gradients.sums import ClippedSum
from userdp.gradients.units import Units


class Engine(Protocol):
    """A way to compute the sum over units of their clipped mean gradients."""

    def __call__(
        self,
        model: nn.Module,
        loss: Loss,
        units: Units,
        *,
        l2_clip_norm: float,
        item_clip_norm: float | None = None,
        micro_batch: int = 32,
        rule: ClipRule = FLAT,
    ) -> ClippedSum:
        """See `userdp.gradients.reference.clipped_sum`."""
        ...


ENGINES: dict[str, Engine] = {
    "auto": auto.clipped_sum,
    "bookkeeping": bookkeeping.clipped_sum,
    "lora": lora.clipped_sum,
    "reference": reference.clipped_sum,
    "vmap": vmap.clipped_sum,
}


def get_engine(name: str = "auto") -> Engine:
    """The engine of that name.

    Raises:
        UseError: there is none.

    >>> get_engine("reference") is reference.clipped_sum
    True
    """
    if name not in ENGINES:
        raise UseError(
            f"there is no gradient engine {name!r}", hint=f"take one of: {', '.join(ENGINES)}"
        )
    return ENGINES[name]


__all__ = ["ENGINES", "Engine", "get_engine"]
