"""`Task`: one clipped sum that is to be computed, and what is known of it."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from userdp.core.vocabulary import require_count
from userdp.gradients.clipping import FLAT, ClipRule, require_clip_norm
from userdp.gradients.losses import Loss
from userdp.gradients.models import require_uncoupled, trainable_parameters
from userdp.gradients.precision import dtypes_of, margin
from userdp.gradients.shards import is_sharded, local
from userdp.gradients.sums import ClippedSum
from userdp.gradients.units import Units


@dataclass(frozen=True, kw_only=True)  # no slots, for the cached property
class Task:
    """One clipped sum that is to be computed. The arguments are those of `Engine.__call__`.

    Attributes:
        ahead: on an accelerator passes are queued one behind another, before it is known that all
            units can be added (`ClippedSum.settle`).

    Raises:
        UseError: a number is out of range, or the model couples rows.
    """

    model: nn.Module
    loss: Loss
    units: Units
    l2_clip_norm: float
    item_clip_norm: float | None = None
    micro_batch: int = 32
    rule: ClipRule = FLAT
    parts: int | None = None
    ahead: bool = False

    def __post_init__(self) -> None:
        require_clip_norm("l2_clip_norm", self.l2_clip_norm)
        if self.item_clip_norm is not None:
            require_clip_norm("item_clip_norm", self.item_clip_norm)
        require_count("micro_batch", self.micro_batch)
        require_uncoupled(self.model)

    def but(self, **changes: Any) -> Task:
        """The same with other ``units``, or another ``l2_clip_norm``, ``micro_batch``, ....

        The model stays, so that it is not looked through again: a step asks for many such tasks.
        """
        other = copy.copy(self)
        if "units" in changes:
            other.__dict__.pop("dtypes", None)
        other.__dict__.update(changes)
        return other

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by name, each tensor once."""
        return trainable_parameters(self.model)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """How many numbers each trainable parameter has."""
        return {name: p.numel() for name, p in self.parameters.items()}

    @cached_property
    def dtypes(self) -> frozenset[torch.dtype]:
        """The precisions in use (`userdp.gradients.precision.dtypes_of`)."""
        return dtypes_of(self.model, self.loss, masked=self.masked)

    @cached_property
    def size(self) -> int:
        """How large the trainable weights are: it changes by one when they double or halve.

        A collective where they are sharded.
        """
        parameters = list(self.parameters.values())
        norms = torch._foreach_norm([local(p.detach()) for p in parameters])
        square = torch.stack([each.double() for each in norms]).square().sum()
        if any(map(is_sharded, parameters)):
            dist.all_reduce(square)
        size = math.log2(max(float(square), 1e-30)) / 2
        return round(size) if math.isfinite(size) else 0

    @property
    def aim(self) -> float:
        """The norm that batches clip at: C less the margin of the precisions in use."""
        return self.l2_clip_norm * (1 - margin(self.dtypes))

    @property
    def masked(self) -> bool:
        """Whether the loss is told which tokens count."""
        return self.units.targets is not None

    def zero(self, dtype: torch.dtype = torch.float64) -> ClippedSum:
        """The sum to which no unit has been added yet."""
        value = {
            name: torch.zeros(local(p).shape, dtype=dtype, device=p.device)
            for name, p in self.parameters.items()
        }
        norms, losses = torch.zeros(2, len(self.units), dtype=torch.float64)
        return ClippedSum(
            value=value, norms=norms, losses=losses, sensitivity=float(self.l2_clip_norm)
        )
