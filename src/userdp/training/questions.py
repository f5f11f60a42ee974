"""What is asked of a model and its loss before the first step, and never during one.

Whether an answer is asked for, and whether it refuses, is seen by others. So everything is asked
here, on made-up rows, of passes as large as the plan allows: no step asks anew because of whom it
drew (invariant 9).
"""

from __future__ import annotations

import torch
from torch import nn

from userdp.errors import UseError
from userdp.gradients import ClipRule, Loss, trainable_parameters
from userdp.gradients.coupling import require_rows_apart
from userdp.gradients.engines import two_pass
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.passes import largest_passes
from userdp.gradients.shards import sharded_parts
from userdp.plans import Plan
from userdp.training.distributed import current_world
from userdp.training.price import warn_if_one_at_a_time
from userdp.vocabulary import PrivacyUnit


def require_fit_for_steps(
    model: nn.Module,
    loss: Loss,
    plan: Plan,
    *,
    engine: str,
    micro_batch: int,
    seq_len: int,
    masked: bool,
) -> None:
    """Refuse a model or a loss for which the engine cannot clip the units of ``plan``.

    Warns of one for which it must compute units one at a time, with the price
    (`userdp.training.price`).

    Args:
        model: at the weights that training begins with.
        loss: per-row loss.
        plan: its clip, and how many rows a unit has at most.
        engine: as `userdp.gradients.get_engine` names it.
        micro_batch: most rows in one pass.
        seq_len: most tokens of a row.
        masked: whether the loss is given targets.

    Raises:
        UseError: rows are coupled, or a sharded model's layers are not covered.
    """
    if sharded_parts(model):
        if engine != "auto":
            raise UseError(
                f"a sharded model has an engine of its own, not {engine!r}",
                hint="leave --engine out, or --sharded",
            )
        two_pass.require_supported(
            Task(
                model=model,
                loss=loss,
                units=two_pass.nobody(model, masked=masked),
                l2_clip_norm=plan.clip.l2_norm,
                item_clip_norm=plan.clip.item_norm,
                rule=rule_of(plan),
            )
        )
        return
    rows = {PrivacyUnit.USER: plan.sampling.group_size, PrivacyUnit.EXAMPLE: 1}
    largest = largest_passes(
        micro_batch,
        seq_len,
        unit_rows=rows.get(plan.sampling.unit, micro_batch),  # a silo's or subject's: any number
        cut=engine != "vmap" and device_of(model).type == "cpu",
    )
    alone = engine == "reference"
    require_rows_apart(model, loss, masked=masked, largest=() if alone else largest)
    if current_world().rank == 0:
        warn_if_one_at_a_time(
            model,
            loss,
            engine=engine,
            unit_rows=rows.get(plan.sampling.unit, micro_batch),
            micro_batch=micro_batch,
            seq_len=seq_len,
            masked=masked,
            l2_clip_norm=plan.clip.l2_norm,
        )


def rule_of(plan: Plan) -> ClipRule:
    """How a plan's clip bounds each unit's gradient."""
    clip = plan.clip
    return ClipRule(form=clip.form, stability=clip.stability, layer_split=clip.split)


def device_of(model: nn.Module) -> torch.device:
    """Where a model's trainable parameters are."""
    return next(iter(trainable_parameters(model).values())).device
