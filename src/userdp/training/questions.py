"""What is asked of a model and its loss before the first step, and never during one.

Whether an answer is asked for, and whether it refuses, is seen by others. So everything is asked
here, on made-up rows, of passes as large as the plan allows: no step asks anew because of whom it
drew (invariant 9).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten

import torch
from torch import nn

from userdp.errors import (
    FailureError,
    MadeUpRowsError,
    UseError,
    UserdpError,
    UserdpWarning,
    printable,
)
from userdp.gradients import ClipRule, Engine, Loss, get_engine, trainable_parameters
from userdp.gradients.certificate.coupling import require_rows_apart
from userdp.gradients.certificate.made_up import Shape, made_up
from userdp.gradients.engines import reference, sharded
from userdp.gradients.engines.engine import Task
from userdp.gradients.model_randomness import secret_randomness
from userdp.gradients.shards import sharded_parts
from userdp.out_of_memory import ran_out_of_memory
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
        FailureError: memory has no room for one example.
    """
    if sharded_parts(model):
        if engine != "auto":
            raise UseError(
                f"a sharded model has an engine of its own, not {engine!r}",
                hint="leave --engine out, or --sharded",
            )
        sharded.require_supported(
            Task(
                model=model,
                loss=loss,
                units=sharded.nobody(model, masked=masked),
                l2_clip_norm=plan.clip.l2_norm,
                item_clip_norm=plan.clip.item_norm,
                rule=rule_of(plan),
            )
        )
        return
    _require_room(model, loss, seq_len=seq_len, masked=masked)
    rows = {PrivacyUnit.USER: plan.sampling.group_size, PrivacyUnit.EXAMPLE: 1}
    require_rows_apart(model, loss, masked=masked)
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


@secret_randomness()
def _require_room(model: nn.Module, loss: Loss, *, seq_len: int, masked: bool) -> None:
    """Refuse a model that memory has no room to train on one example; nothing is charged then.

    What is larger is halved where it does not fit (`userdp.gradients.engines.room`); one example is
    the end of that, and whether a step would come to it is for the cohort to say.

    Raises:
        FailureError: there is no room.
    """
    one = made_up(model, Shape((1,), (seq_len,)), masked=masked, device=device_of(model))
    try:
        reference.sum_of_units(Task(model=model, loss=loss, units=one, l2_clip_norm=1.0))
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        raise FailureError(
            f"memory has no room for the gradient of one example of {seq_len} tokens, so that no "
            "step could be taken; nothing was charged",
            hint="take a machine or a device with more memory, --activation-checkpointing, "
            "--lora-rank, a smaller model, or a store of a smaller --seq-len",
        ) from None


@contextmanager
def on_made_up_rows() -> Iterator[None]:
    """What fails within fails on rows that are nobody's, before anything is charged.

    Raises:
        MadeUpRowsError: in place of any error but userdp's own, and of memory that ran out.
    """
    try:
        yield
    except (UserdpError, UserdpWarning):
        raise
    except Exception as error:  # whatever a model, a loss or a library raises
        if ran_out_of_memory(error):
            raise
        words = printable(shorten(str(error), 400, placeholder=" …"))
        raise MadeUpRowsError(
            f"the model or its loss fails on made-up rows, as it would in each step: "
            f"{type(error).__name__}: {words}. Nothing was charged",
            hint="the cause of this error (its __cause__) has the place in the code",
        ) from error


def engine_of(model: nn.Module, name: str) -> Engine:
    """What clips and sums for this model: the engine of that name, or that of sharded models."""
    return sharded.clipped_sum if sharded_parts(model) else get_engine(name)


def rule_of(plan: Plan) -> ClipRule:
    """How a plan's clip bounds each unit's gradient."""
    clip = plan.clip
    return ClipRule(form=clip.form, stability=clip.stability, layer_split=clip.split)


def device_of(model: nn.Module) -> torch.device:
    """Where a model's trainable parameters are."""
    return next(iter(trainable_parameters(model).values())).device
