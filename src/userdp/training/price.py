"""What a model costs whose users cannot share a pass, said before anything is charged.

The engines compute what they do not understand one unit at a time: with the same claim, and at a
price that a user otherwise learns after a day. So it is asked and measured on made-up rows, of as
many and as long ones as the plan allows; neither the answer nor its words depend on anybody's data.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from userdp.errors import warn
from userdp.gradients import Loss, Units, trainable_parameters
from userdp.gradients.certificate.made_up import Shape, if_it_runs, made_up
from userdp.gradients.engines import reference
from userdp.gradients.engines.choice import why_alone
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.passes import rows_per_pass
from userdp.gradients.losses import row_losses
from userdp.gradients.model_randomness import secret_randomness
from userdp.out_of_memory import ran_out_of_memory

_WORTH_SAYING = 1.3
"""Below it one at a time costs about what batches cost."""

_LONG = 2.0
"""Seconds of a pass beyond which one measurement must do."""


@secret_randomness()
def warn_if_one_at_a_time(
    model: nn.Module,
    loss: Loss,
    *,
    engine: str,
    unit_rows: int,
    micro_batch: int,
    seq_len: int,
    masked: bool,
    l2_clip_norm: float,
) -> None:
    """Warn, once, of layers because of which each unit has passes of its own, and of the price.

    Silent where users share passes, where the reference engine was asked for, and where computing
    users one by one costs no more, since each fills passes.

    Args:
        model: at the weights that training begins with; not sharded.
        loss: per-row loss.
        engine: as `userdp.gradients.get_engine` names it.
        unit_rows: most rows of a unit.
        micro_batch: most rows in one pass.
        seq_len: most tokens of a row.
        masked: whether the loss is given targets.
        l2_clip_norm: C.

    Raises:
        UseError: the model or the loss couples rows.
    """
    if engine == "reference" or unit_rows > micro_batch:
        return
    device = next(iter(trainable_parameters(model).values())).device
    one = made_up(model, _shape(1, unit_rows, seq_len), masked=masked, device=device)
    task = Task(
        model=model, loss=loss, units=one, l2_clip_norm=l2_clip_norm, micro_batch=micro_batch
    )
    reason = why_alone(task)
    if reason is None:
        return
    together = max(1, rows_per_pass(seq_len, micro_batch, device) // unit_rows)
    many = made_up(model, _shape(together, unit_rows, seq_len), masked=masked, device=device)
    with if_it_runs():
        try:
            price = together * _seconds(lambda: reference.sum_of_units(task), device)
            price /= _seconds(lambda: _ordinary(task, many), device)
        except (MemoryError, RuntimeError) as error:
            if not ran_out_of_memory(error):
                raise
            return  # there is no room for the batched step that this would be dearer than
        if price > _WORTH_SAYING:
            warn(
                _told(reason, price, unit_rows, seq_len),
                stacklevel=5,  # where `make_private` is called
            )


def _shape(units: int, rows: int, length: int) -> Shape:
    return Shape((rows,) * units, (length,) * (units * rows))


def _ordinary(task: Task, units: Units) -> None:
    """A forward and backward pass over all rows at once, as in training without privacy."""
    with torch.enable_grad():
        losses = row_losses(task.loss, task.model, units.input_ids, units.lengths, units.targets)
        parameters = list(task.parameters.values())
        torch.autograd.grad(losses.mean(), parameters, allow_unused=True)


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """The shortest of a few runs; the first one warms up what is allocated and compiled."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    best = float("inf")
    for _ in range(3):
        begin = clock()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, clock() - begin)
        if best > _LONG:
            break
    return best


def _told(reason: str, price: float, unit_rows: int, seq_len: int) -> str:
    rows = f"{unit_rows} made-up row{'s' * (unit_rows > 1)} of {seq_len} tokens"
    return (
        f"users cannot share a pass of this model: {reason}. Each is computed alone, at about "
        f"{price:.1f} times the processor time of a batched step (measured on {rows} a user). The "
        f"claim is the same. Way out: freeze these layers, train adapters on others, or take a "
        "larger group size, so that each user fills passes; or take engine reference, to accept it "
        "silently"
    )
