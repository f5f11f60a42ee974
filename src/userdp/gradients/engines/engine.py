"""`Engine`: the one signature of all gradient engines; `Task`: one clipped sum to be computed.

**Passes for which memory has room.** Memory runs out where it likes: in a pass, while a unit is
added to the sum, in a pass that is computed again. So nothing of the attempt is kept. The
sum begins again at zero, over the same units, from the same states of the generators, with at most
half as many rows in a pass. What comes out is, to the last bit, the sum of a call that was given
that ``micro_batch`` from the start. The cohort was drawn before, and noise is added after: neither
knows of it.

**What may depend on people's data, and what may not.** How large a pass is may: lengths and counts
of the rows decide what it needs. A contribution changes by it only in its last bits, as it does
with whoever else shares the pass (`engines.batched`, 2), and the margin of the clip is for that.
Masks are drawn anew from the states in which the first attempt began. That selects none: whether
memory ran out is a matter of shapes and never of what the masks were.
Whoever watches the clock, the memory or the log sees that a pass was halved
(docs/concepts/secrets.md).

The room that was found is kept for as long as model and loss live, so that the next step does not
run out again.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from userdp.core.errors import FailureError, ran_out_of_memory
from userdp.core.vocabulary import require_count
from userdp.gradients.certificate.made_up import Answers
from userdp.gradients.certificate.state import State
from userdp.gradients.clip_factors import FLAT, ClippedSum, ClipRule, require_clip_norm
from userdp.gradients.losses import Loss
from userdp.gradients.model_randomness import GeneratorStates, secret_randomness
from userdp.gradients.models import require_uncoupled, trainable_parameters
from userdp.gradients.modes import let_go_of_memory
from userdp.gradients.precision import dtypes_of, is_narrow, margin, require_no_autocast
from userdp.gradients.shards import is_sharded, local, sharded_parts
from userdp.gradients.units import Units

_log = logging.getLogger(__name__)
_room: Answers[int] = Answers()


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


@dataclass(frozen=True, slots=True)
class Engine:
    r"""A way to compute the sum over units of their clipped mean gradients.

    .. math::
        \sum_k \mathrm{clip}\Big(\frac{1}{|D_k|} \sum_{x \in D_k} \nabla \ell(\theta, x),\, C\Big)

    Guarantee: adding or removing one unit moves ``value`` by at most ``l2_clip_norm`` in L2,
    rounding included (see `userdp.gradients.clip_factors`; for the batched engine
    `userdp.gradients.engines.batched`). A unit with a NaN or infinite gradient contributes exactly
    zero. Dropout masks are secret, and a unit's are drawn once; "at most" holds for equal masks of
    everybody else, which is what privacy needs (`userdp.gradients.model_randomness`).

    Args:
        compute: the sum of a task, in secret randomness. It may be asked more than once, each
            time with at most half as many rows in a pass as before.
    """

    compute: Callable[[Task], ClippedSum]

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
        parts: int | None = None,
    ) -> ClippedSum:
        """Compute the clipped sum.

        Args:
            model: in training or evaluation mode (left as it is); frozen parameters are left out,
                tied parameters count once. ``.grad`` is neither read nor written. Activation
                checkpointing (not reentrant) works.
            loss: per-row loss, see `userdp.gradients.losses.Loss`.
            units: the cohort, on the model's device.
            l2_clip_norm: C, in gradient units; in [1e-8, 1e30].
            item_clip_norm: if given, each row's gradient is first clipped to this norm (two-stage
                clip): one unusual example then cannot decide the direction of its unit. A unit with
                a non-finite row counts as zero as a whole.
            micro_batch: most rows in one pass; changes memory and rounding inside the unit's
                gradient, never the guarantee.
            rule: form of the unit's clip, and its split over layers (the clip of rows is always
                flat).
            parts: how many such sums, over as many sets of units, are added up into what is noised
                (micro-batches times processes). Where it is known, a batched engine may take half
                the memory for its sum while it computes (`userdp.gradients.engines.rounding`); None
                makes no such promise.

        Returns:
            `ClippedSum`; zeros for an empty cohort (a noise-only step that counts).

        Raises:
            UseError: a parameter is out of range; the model or the loss couples rows
                (`userdp.gradients.models.require_uncoupled`, `certificate.coupling`: one that does
                gives no batched engine the same sum, so none accepts it), seeds a generator or
                answers otherwise in another order of units; or autocast is on around this call
                (`userdp.gradients.precision`).
            FailureError: the model seeded a generator; a pass of one row does not fit into memory;
                or memory ran out where smaller passes would move everybody's numbers by more than a
                margin covers (fewer bits than float32), or while other processes wait in the middle
                of a sharded layer.

        Source: Charles et al. 2024, Algorithm 2 and Eq. 4 (ULS); with one row per unit, Algorithm 1
        (ELS). Chua et al. 2024, User-wise DP-SGD.
        """
        device = units.lengths.device
        require_no_autocast(device)
        task = Task(
            model=model,
            loss=loss,
            units=units,
            l2_clip_norm=l2_clip_norm,
            item_clip_norm=item_clip_norm,
            micro_batch=micro_batch,
            rule=rule,
            parts=parts,
        )
        Answers.forget_without_hooks(model)
        room, halvings = _room.of(model, loss), 0
        with secret_randomness():
            begun, state = GeneratorStates.read(), State(model, loss)
            while True:
                rows = min(micro_batch, room.get("rows", micro_batch))
                try:
                    total = self.compute(task.but(micro_batch=rows))
                    break
                except (MemoryError, RuntimeError) as error:
                    if not ran_out_of_memory(error):
                        raise
                # Not in the clause above: until its end the error holds the frames, and these the
                # tensors.
                let_go_of_memory()
                state.put_back()
                rows = min(rows, len(units.lengths))
                _require_smaller_passes(task, rows)
                begun.load()
                if not halvings and "rows" not in room:
                    _log.warning(
                        "memory ran out while gradients were computed: passes have at most half as "
                        "many examples from here on. The users, the noise and the claim are those "
                        "of the plan; a smaller --micro-batch would save the time that was lost"
                    )
                room["rows"] = rows // 2
                halvings += 1
        total.halvings = halvings
        require_no_autocast(device)  # nor was it turned on within
        return total


def _require_smaller_passes(task: Task, rows: int) -> None:
    """Refuse to go on where passes of ``rows`` rows cannot be halved."""
    if sharded_parts(task.model):
        where = "of a sharded model, whose processes compute in step"
    elif any(map(is_narrow, task.dtypes)):
        where = (
            "of a model that computes in fewer bits than float32, where smaller passes round "
            "differently, for everybody at once"
        )
    elif rows < 2:
        where = "over one example"
    else:
        return
    raise FailureError(
        f"memory ran out in a pass {where}, so that it cannot be halved: training stopped before "
        "this update",
        hint="go on with a smaller --micro-batch, or on a machine or device with more memory; a "
        "new run needs less with --set learning.activation_checkpointing=true, --lora-rank, or a "
        "store of a smaller --seq-len",
    )
