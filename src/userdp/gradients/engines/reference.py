"""The reference engine: one unit at a time, plain autograd. Slow, simple, and the oracle.

Guarantee: a unit's contribution is a function of the model and of that unit's rows: it is computed
alone, padded to its own longest row, and added in float64. It begins from states of generators that
no other unit has touched, and what model and loss hold is put back behind it
(`certificate.state`). A unit whose gradient is not finite, or whose rows make the model or the loss
raise an error, counts as zero. A two-stage clip costs a backward pass per row.

Models under `torch.compile` run as they are written. Code compiled for the shapes of one unit
serves those after it: the rounding of a unit's gradient would depend on who came before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch
from torch import Tensor

from userdp.gradients.certificate.coupling import require_rows_apart
from userdp.gradients.certificate.made_up import RAGGED, Answers, made_up
from userdp.gradients.certificate.state import State
from userdp.gradients.clip_factors import ClippedSum, clip_factors, squared_norm, squared_norms
from userdp.gradients.engines.engine import Task
from userdp.gradients.losses import checked_losses, may_be_of_rows
from userdp.gradients.model_randomness import StatesApart, known_randomness
from userdp.gradients.modes import eagerly
from userdp.gradients.units import own_rows

_log = logging.getLogger(__name__)
_runs: Answers[bool] = Answers()


def sum_of_units(task: Task) -> ClippedSum:
    """The clipped sum, unit by unit.

    Raises:
        UseError: the model or the loss couples rows.
        Exception: whatever the model or the loss raises on made-up rows too.
    """
    require_rows_apart(task.model, task.loss, masked=task.masked)
    total, states = task.zero(), StatesApart()
    add_units(task, total, range(len(task.units)), State(task.model, task.loss), states)
    return total


def add_units(
    task: Task, total: ClippedSum, units: Iterable[int], state: State, states: StatesApart
) -> None:
    """Add units of a task to ``total``, each computed alone.

    Args:
        task: what is to be computed.
        total: float64.
        units: their numbers.
        state: what model and loss hold, which is put back behind each unit.
        states: of generators, a new one for each unit.
    """
    for unit in units:
        one = task.but(units=task.units.select(unit, unit + 1))
        if not len(one.units.lengths):
            continue
        states.load_next()
        try:
            gradient, total.losses[unit] = mean_gradient(one)
        except Exception as error:  # whatever the model's and the loss's code raise
            state.put_back()
            count_failed(task, total, unit, error)
            continue
        state.put_back()
        squares = dict(zip(task.sizes, squared_norms(gradient), strict=True))
        norm = total.norms[unit] = torch.stack(list(squares.values())).sum().sqrt()
        if not bool(norm.isfinite()):
            total.non_finite += 1
            continue
        by_name = task.rule.factors(squares, task.sizes, l2_clip_norm=task.l2_clip_norm)
        factors = torch.stack([by_name[name] for name in task.sizes]).tolist()
        for into, part, factor in zip(total.value.values(), gradient, factors, strict=True):
            into.add_(part, alpha=factor)


def count_failed(task: Task, total: ClippedSum, unit: int, error: Exception) -> None:
    """Count a unit as zero whose rows raised ``error``: a step that stops would tell of it.

    Raises:
        Exception: the error, where it says nothing of rows; and what made-up rows raise.
    """
    if not may_be_of_rows(error):
        raise error
    known = _runs.of(task.model, task.loss)
    if not known:
        some = made_up(task.model, RAGGED[0], masked=task.masked, device=task.units.lengths.device)
        with known_randomness("made-up rows"):
            mean_gradient(task.but(units=some.select(0, 1)))
        known[True] = True
        _log.warning(
            "the model or the loss raised %s on somebody's examples. Such users count as zero, in "
            "this step and in later ones, since a step that stops would tell that they were drawn. "
            "operator.jsonl counts them (failed)",
            type(error).__name__,
        )
    total.failed += 1
    total.norms[unit] = total.losses[unit] = torch.nan


def mean_gradient(task: Task) -> tuple[list[Tensor], float]:
    """The mean of one unit's gradients, each row's clipped before if asked; and the mean loss."""
    input_ids, lengths, targets = task.units.cut()
    rows, item_clip_norm = len(lengths), task.item_clip_norm
    most = task.micro_batch if item_clip_norm is None else 1
    mean, mean_loss = list[Tensor](), 0.0
    for begin in range(0, rows, most):
        here = slice(begin, begin + most)
        marks, width = None if targets is None else targets[here], int(lengths[here].max())
        ids, sizes, marks = own_rows(input_ids[here], lengths[here], marks, width=width)
        with torch.enable_grad(), eagerly():
            losses = checked_losses(task.loss, task.model, ids, sizes, marks)
            # Of a row that is clipped by itself the gradient must be the row's own, not its share.
            total = losses.sum() * (1 / rows if item_clip_norm is None else 1.0)
            gradients = torch.autograd.grad(
                total, list(task.parameters.values()), allow_unused=True
            )
        part = [
            torch.zeros_like(p, dtype=wide) if g is None else g.to_dense().to(wide)
            for p, g in zip(task.parameters.values(), gradients, strict=True)
            for wide in [torch.promote_types(p.dtype, torch.float32)]
        ]
        loss = float(total.detach())
        if item_clip_norm is not None:
            part, loss = _clipped_share(part, item_clip_norm, rows), loss / rows
        mean = [a + b for a, b in zip(mean, part, strict=True)] if mean else part
        mean_loss += loss
    return mean, mean_loss


def _clipped_share(gradient: list[Tensor], item_clip_norm: float, rows: int) -> list[Tensor]:
    """A row's clipped gradient divided by ``rows``; all NaN where it is not finite.

    NaN makes the whole unit's mean NaN, so that the unit counts as non-finite.
    """
    squares = torch.tensor(squared_norm(gradient), dtype=torch.float64)
    factor = float(clip_factors(squares, l2_clip_norm=item_clip_norm)) or torch.nan
    return [part.double() * (factor / rows) for part in gradient]
