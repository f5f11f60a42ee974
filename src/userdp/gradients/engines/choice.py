"""The one way from a task to its clipped sum: which engine computes it, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from userdp.gradients.coupling import require_rows_apart
from userdp.gradients.draws import Draws, require_replayable
from userdp.gradients.engines import one_pass, reference, vmap
from userdp.gradients.engines.agreement import agrees_with_reference
from userdp.gradients.engines.engine import Engine, Task
from userdp.gradients.engines.failing import sum_despite_errors
from userdp.gradients.engines.forms import Form
from userdp.gradients.engines.one_pass import LEAST_CLIP
from userdp.gradients.engines.passes import Pass, largest_passes
from userdp.gradients.engines.precision import aim, is_narrow
from userdp.gradients.engines.room import sum_that_fits
from userdp.gradients.engines.tape import NotCoveredError
from userdp.gradients.held_state import HeldState
from userdp.gradients.losses import Loss
from userdp.gradients.made_up import Answers, hooks_changed, most_tokens
from userdp.gradients.model_randomness import GeneratorStates, secretly
from userdp.gradients.row_errors import may_be_of_rows
from userdp.gradients.sums import ClippedSum
from userdp.gradients.units import Units
from userdp.out_of_memory import ran_out_of_memory

_LOW_RANK = 256
"""Adapters have matrices of at most this rank."""

_FEW = 0.05
"""Adapters are at most this part of all parameters: forming their gradients then costs little."""

_BATCHED: dict[str, Callable[[Task], ClippedSum]] = {
    "bookkeeping": one_pass.sum_of_passes,
    "lora": partial(one_pass.sum_of_passes, form=Form.FORMED),
    "vmap": vmap.sum_of_batches,
}

_APART: dict[str, Callable[[Task], ClippedSum]] = {
    "bookkeeping": one_pass.sum_apart,
    "lora": partial(one_pass.sum_apart, form=Form.FORMED),
}
"""The same numbers, one unit in each pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which engine `auto` takes, and why; the reason speaks of shapes, never of data."""

    engine: str
    reason: str


@secretly
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
    return _choice(task)


def _choice(task: Task) -> Choice:
    if len(task.units) and int(task.units.offsets.diff().min()) > task.micro_batch:
        reason: str | None = (
            f"every unit has more than micro_batch = {task.micro_batch} rows: one at a time, "
            "accumulated over passes, costs no more than an ordinary step"
        )
    else:
        reason = why_alone(task)
    if reason is not None:
        return Choice(engine="reference", reason=reason)
    trained = sum(task.sizes.values())
    everything = sum(p.numel() for p in task.everything)
    low_rank = all(p.dim() < 2 or min(p.shape) <= _LOW_RANK for p in task.parameters.values())
    if low_rank and trained <= _FEW * everything:
        return Choice(
            engine="lora",
            reason=f"{trained:,} of {everything:,} parameters train, all of low rank: each unit's "
            "gradient is formed",
        )
    return Choice(
        engine="bookkeeping",
        reason=f"{trained:,} of {everything:,} parameters train, all with a per-unit rule: one "
        "backward pass; each layer forms gradients or Gram matrices, whichever costs less",
    )


def why_alone(task: Task, *, traced: bool = False) -> str | None:
    """Why each unit needs passes of its own; None where several units may share a pass.

    This is the one place where it is asked whether the batched engines agree with the reference:
    for each model and loss, anew when the weights have grown, always on made-up rows.

    Args:
        task: what is to be computed.
        traced: whether ``vmap`` traces the model, which needs no rules for its layers.

    Raises:
        UseError: the model or the loss couples rows.
    """
    if task.least_clip_norm < LEAST_CLIP:
        return f"the clip norm is below {LEAST_CLIP:g}, where float32 squares vanish"
    narrow = any(map(is_narrow, task.dtypes))
    if narrow and (traced or task.draws is not Draws.NONE):
        return (
            "the model computes in fewer bits than float32 and "
            f"{'is traced by vmap' if traced else 'draws random numbers'}, so that everybody's "
            "rounding would depend on who else is there: one at a time"
        )
    if task.units.input_ids.shape[1] > most_tokens(task.model):
        return (
            "rows are longer than the model's configuration says it is made for, and made-up rows "
            "that long cannot tell what it does with them: one at a time"
        )
    require_rows_apart(
        task.model,
        task.loss,
        masked=task.masked,
        largest=_largest(task, traced=traced),
    )
    if not agrees_with_reference(
        task.model, task.loss, masked=task.masked, traced=traced, later=task.later
    ):
        return (
            "some trainable parameter is used in a way that has no per-unit rule, it is not seen "
            "that rows are kept apart (tokens are selected, sorted or routed), or the weights are "
            "so large that a unit's rounding hangs on who shares its pass"
        )
    if task.draws is Draws.SHARED:
        return (
            "the model draws random numbers that all rows of a pass share (a coin that skips a "
            "layer, dropout of positions or weights), so each unit has passes of its own"
        )
    return None


def _largest(task: Task, *, traced: bool) -> list[tuple[int, int]]:
    """Rows and width of the largest passes of these units."""
    units = task.units
    return largest_passes(
        task.micro_batch,
        units.input_ids.shape[1],
        unit_rows=max(units.offsets.diff().tolist(), default=0),
        cut=not traced and units.lengths.device.type == "cpu",
    )


def _clipped_sum(name: str, task: Task) -> ClippedSum:
    """The sum by engine ``name``, whatever somebody's rows make the model or the loss raise."""
    if hooks_changed(task.model):
        Answers.forget(task.model)
    return sum_despite_errors(
        task,
        together=partial(_sum_in_room, name, forgiving=False),
        alone=partial(_sum_in_room, name, forgiving=True),
    )


def _sum_in_room(name: str, task: Task, *, forgiving: bool) -> ClippedSum:
    """The sum in passes that memory has room for; ``forgiving``: one unit in each."""
    return sum_that_fits(
        partial(_attempt, name, forgiving=forgiving),
        task,
        most_rows=partial(_most_rows, name),
    )


def _most_rows(name: str, task: Task) -> int:
    """Rows of the largest pass of engine ``name``, or of the parts of a unit that is too large."""
    large = min(task.micro_batch, max(task.units.offsets.diff().tolist(), default=0))
    passes: list[Pass] = []
    if name == "vmap":
        passes, _ = vmap.cut(task)
    elif name != "reference":
        passes, _ = one_pass.cut(task, Form.FORMED if name == "lora" else None)
    return max([large, *(one.shape.units * one.shape.rows for one in passes)])


def _attempt(name: str, task: Task, *, forgiving: bool) -> ClippedSum:
    """The sum by engine ``name``, by which nothing changes that model or loss hold."""
    means = _alone if forgiving else _means
    ahead = task.but(later=[] if _runs_ahead(task) else None)
    compute = means(name, ahead)
    held = HeldState(task.model, task.loss)
    begun = GeneratorStates.read()
    total = _unchanging(compute, ahead.but(held=held))
    far_hold = held.far_hold()
    if not (total.settle() and all(holds() for holds in ahead.later or ())):
        del total
        compute = means(name, task)
        begun.load()  # the same masks, whatever was not usable
        total = _unchanging(compute, task.but(held=held))
        far_hold = held.far_hold()
    held.require_far(far_hold)
    return total


def _runs_ahead(task: Task) -> bool:
    """Whether there is an accelerator, which has something to do while the host prepares more."""
    return task.units.lengths.device.type != "cpu"


def _unchanging(compute: Callable[[Task], ClippedSum], task: Task) -> ClippedSum:
    """The sum, after which model and loss hold what they held."""
    try:
        total = _computed(compute, task)
    except Exception as error:  # whatever the model's and the loss's code raise
        if ran_out_of_memory(error) or may_be_of_rows(error):
            task.require_unchanged()  # what this attempt has left, the next one would read
        raise
    task.require_unchanged()
    return total


def _computed(compute: Callable[[Task], ClippedSum], task: Task) -> ClippedSum:
    """The sum by ``compute``, or unit by unit where that cannot serve."""
    try:
        return compute(task)
    except NotCoveredError:
        return one_at_a_time(task)


def _means(name: str, task: Task) -> Callable[[Task], ClippedSum]:
    """What computes a task for engine ``name``."""
    if name == "reference":
        _require_separable(task)
        return reference.sum_of_units
    if name == "auto":
        name = _choice(task).engine
    elif why_alone(task, traced=name == "vmap") is not None:
        name = "reference"
    return _BATCHED.get(name, one_at_a_time)


def _alone(name: str, task: Task) -> Callable[[Task], ClippedSum]:
    """What computes unit by unit what engine ``name`` does, and forgives errors."""
    if name == "reference":
        return partial(reference.sum_of_units, forgiving=True)
    apart = _APART.get(_choice(task).engine if name == "auto" else name)
    if apart is None or why_alone(task) is not None or task.draws is not Draws.NONE:
        return partial(one_at_a_time, forgiving=True)
    return apart


def one_at_a_time(task: Task, *, forgiving: bool = False) -> ClippedSum:
    """The reference engine's sum, clipped where the batched engines aim.

    Which of the two computes a cohort may depend on who is in it; with one aim for both, that
    changes nobody's contribution by more than rounding.
    """
    _require_separable(task)
    total = reference.sum_of_units(task.but(l2_clip_norm=aim(task)), forgiving=forgiving)
    total.sensitivity = float(task.l2_clip_norm)
    return total


def _require_separable(task: Task) -> None:
    """Refuse a model or a loss by which units meet even if each has passes of its own."""
    require_rows_apart(task.model, task.loss, masked=task.masked)
    require_replayable(task.model, task.loss, task.units)


ENGINES: dict[str, Engine] = {
    name: Engine(partial(_clipped_sum, name)) for name in ("auto", "reference", *_BATCHED)
}
