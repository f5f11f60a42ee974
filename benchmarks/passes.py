"""What a method is timed beside, and our engines, over the same units."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from userdp.gradients import Loss, Units, get_engine, trainable_parameters
from userdp.gradients.engines import batched, sharded
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.passes import Pass
from userdp.gradients.engines.uses import Forms

CLIP = 1.0
Step = Callable[[], object]


def plain(
    model: nn.Module, loss: Loss, units: Units, micro_batch: int, called: nn.Module | None = None
) -> None:
    """The ordinary pass; ``called`` is handed to the loss in the model's place (compiled, say)."""
    parameters = list(trainable_parameters(model).values())
    count = len(units.lengths)
    for parameter in parameters:
        parameter.grad = None
    for begin in range(0, count, micro_batch):
        here = slice(begin, begin + micro_batch)
        rows = loss(model if called is None else called, units.input_ids[here], units.lengths[here])
        (rows.sum() / count).backward()


def engine_step(
    name: str,
    model: nn.Module,
    loss: Loss,
    units: Units,
    *,
    micro_batch: int,
    parts: int | None = None,
) -> Step:
    engine = sharded.clipped_sum if name == "sharded" else get_engine(name)
    return lambda: engine(
        model, loss, units, l2_clip_norm=CLIP, micro_batch=micro_batch, parts=parts
    )


def passes_of(task: Task, form: Forms = None) -> list[Pass]:
    """The passes in which the batched engine computes a task; certifies their shapes."""
    return batched.Passes(task, form).passes
