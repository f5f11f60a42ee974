"""The one way from a task to its clipped sum: which engine computes it, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from userdp.gradients.certificate.coupling import require_rows_apart
from userdp.gradients.certificate.made_up import Answers, hooks_changed, most_tokens
from userdp.gradients.engines import batched, reference
from userdp.gradients.engines.agreement import why_not_batched
from userdp.gradients.engines.batched import LEAST_CLIP
from userdp.gradients.engines.engine import Engine, Task
from userdp.gradients.engines.forms import Form
from userdp.gradients.engines.room import sum_that_fits
from userdp.gradients.losses import Loss
from userdp.gradients.model_randomness import GeneratorStates, secret_randomness
from userdp.gradients.sums import ClippedSum
from userdp.gradients.units import Units

_LOW_RANK = 256
"""Adapters have matrices of at most this rank."""

_FEW = 0.05
"""Adapters are at most this part of all parameters: forming their gradients then costs little."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which engine `auto` takes, and why; the reason speaks of shapes, never of data."""

    engine: str
    reason: str


@secret_randomness()
def choose(
    model: nn.Module,
    loss: Loss,
    units: Units,
    *,
    l2_clip_norm: float = 1.0,
    micro_batch: int = 32,
) -> Choice:
    """The engine that `auto` takes for this model and these units."""
    task = Task(
        model=model, loss=loss, units=units, l2_clip_norm=l2_clip_norm, micro_batch=micro_batch
    )
    if len(task.units) and int(task.units.offsets.diff().min()) > task.micro_batch:
        return Choice(
            engine="reference",
            reason=f"every unit has more than micro_batch = {task.micro_batch} rows: one at a "
            "time, accumulated over passes, costs no more than an ordinary step",
        )
    reason = why_alone(task)
    if reason is not None:
        return Choice(engine="reference", reason=reason)
    trained = sum(task.sizes.values())
    everything = sum(p.numel() for p in task.everything)
    return Choice(
        engine="batched",
        reason=f"{trained:,} of {everything:,} parameters train, all with a per-unit rule: one "
        "backward pass; "
        + (
            "all are of low rank, so that each unit's gradient is formed"
            if _form(task) is Form.FORMED
            else "each layer forms gradients or Gram matrices, whichever costs less"
        ),
    )


def _form(task: Task) -> Form | None:
    """All gradients of adapters are formed; else each layer chooses by cost."""
    low_rank = all(p.dim() < 2 or min(p.shape) <= _LOW_RANK for p in task.parameters.values())
    few = sum(task.sizes.values()) <= _FEW * sum(p.numel() for p in task.everything)
    return Form.FORMED if low_rank and few else None


def why_alone(task: Task) -> str | None:
    """Why each unit needs passes of its own; None where several units may share a pass.

    Asked of each model and loss, on made-up rows.

    Args:
        task: what is to be computed.

    Raises:
        UseError: the model or the loss couples rows, or what it says of a unit depends on others.
    """
    require_rows_apart(task.model, task.loss, masked=task.masked)
    if task.least_clip_norm < LEAST_CLIP:
        return f"the clip norm is below {LEAST_CLIP:g}, where float32 squares vanish"
    if task.units.input_ids.shape[1] > most_tokens(task.model):
        return (
            "rows are longer than the model's configuration says it is made for, and made-up rows "
            "that long cannot tell what it does with them"
        )
    return why_not_batched(task.model, task.loss, masked=task.masked)


def _in_batches(task: Task) -> ClippedSum:
    """The sum in passes that users share, as far as these are certified."""
    if why_alone(task) is not None:
        return _one_at_a_time(task)
    compute = partial(batched.sum_of_passes, form=_form(task))
    begun = GeneratorStates.read()
    ahead = task.units.lengths.device.type != "cpu"  # it has something to do meanwhile
    total = compute(task.but(ahead=ahead))
    if not total.settle():
        del total
        begun.load()  # the same masks, whatever was not usable
        total = compute(task)
    return total


def _one_at_a_time(task: Task) -> ClippedSum:
    """The reference engine's sum, clipped where batches aim.

    Which of the two computes a cohort may depend on who is in it; with one aim for both, that
    changes nobody's contribution by more than rounding.
    """
    total = reference.sum_of_units(task.but(l2_clip_norm=task.aim))
    total.sensitivity = float(task.l2_clip_norm)
    return total


def _by_reference(task: Task) -> ClippedSum:
    require_rows_apart(task.model, task.loss, masked=task.masked)
    return reference.sum_of_units(task)


def _clipped_sum(compute: Callable[[Task], ClippedSum], task: Task) -> ClippedSum:
    """The sum, in passes that memory has room for."""
    if hooks_changed(task.model):
        Answers.forget(task.model)
    return sum_that_fits(compute, task)


ENGINES: dict[str, Engine] = {
    "auto": Engine(partial(_clipped_sum, _in_batches)),
    "reference": Engine(partial(_clipped_sum, _by_reference)),
}
