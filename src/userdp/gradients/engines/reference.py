"""The reference engine: one unit at a time, plain autograd. Slow, simple, and the oracle.

Guarantee: a unit's contribution is a function of the model and of that unit's rows: it is computed
alone, padded to its own longest row, and added in float64. Dropout masks are drawn anew for each
pass, a pass is one unit's, and a unit begins from generators that no other has touched. A two-stage
clip costs a backward pass per row.

Models under `torch.compile` run as they are written. Code compiled for the shapes of one unit
serves those after it: the rounding of a unit's gradient would depend on who came before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from userdp.gradients.clipping import clip_factors, squared_norm, squared_norms
from userdp.gradients.engines.engine import Task
from userdp.gradients.losses import DetachedLossError, checked_losses
from userdp.gradients.model_randomness import StatesApart
from userdp.gradients.modes import eagerly
from userdp.gradients.row_errors import may_be_of_rows
from userdp.gradients.sums import ClippedSum
from userdp.gradients.units import own_rows


def sum_of_units(task: Task, *, forgiving: bool = False) -> ClippedSum:
    """The clipped sum, unit by unit. What the model and the loss may be was asked before.

    Args:
        task: what is to be computed.
        forgiving: a unit whose rows make the model or the loss raise an error counts as zero, and
            is counted, instead (`engines.failing`). Of a unit of several passes, one whose loss
            has no graph adds zero, as its rows do in a pass that they share with others.
    """
    total, sizes, states = task.zero(), task.sizes, StatesApart()
    for unit, rows in enumerate(task.units):
        if len(rows[1]) == 0:
            continue
        task.require_unchanged()  # by the pass before
        states.load_next()
        try:
            gradient, total.losses[unit], detached = mean_gradient(task, *rows, forgiving=forgiving)
        except Exception as error:  # whatever the model's and the loss's code raise
            if not (forgiving and may_be_of_rows(error)):
                raise
            total.failed += 1
            total.norms[unit] = total.losses[unit] = torch.nan
            continue
        total.failed += detached
        squares = dict(zip(sizes, squared_norms(gradient), strict=True))
        norm = total.norms[unit] = torch.stack(list(squares.values())).sum().sqrt()
        if not bool(norm.isfinite()):
            total.non_finite += 1
            continue
        by_name = task.rule.factors(squares, sizes, l2_clip_norm=task.l2_clip_norm)
        factors = torch.stack([by_name[name] for name in sizes]).tolist()
        for into, part, factor in zip(total.value.values(), gradient, factors, strict=True):
            into.add_(part, alpha=factor)
        del gradient  # not beside the next unit's
    states.load_next()
    return total


def mean_gradient(
    task: Task,
    input_ids: Tensor,
    lengths: Tensor,
    targets: Tensor | None,
    *,
    forgiving: bool = False,
) -> tuple[list[Tensor], float, bool]:
    """The mean of one unit's gradients, each row's clipped before if asked; and the mean loss.

    And whether some pass had a loss without a graph, which is an error unless ``forgiving``.
    """
    rows, item_clip_norm = len(lengths), task.item_clip_norm
    most = task.micro_batch if item_clip_norm is None else 1
    mean, mean_loss, detached = list[Tensor](), 0.0, False
    for begin in range(0, rows, most):
        here = slice(begin, begin + most)
        ids, sizes, marks = own_rows(
            input_ids[here],
            lengths[here],
            None if targets is None else targets[here],
            width=int(lengths[here].max()),
        )
        with torch.enable_grad(), eagerly():
            try:
                losses = checked_losses(task.loss, task.model, ids, sizes, marks)
            except DetachedLossError:
                if not forgiving:
                    raise
                losses, detached = _without_gradient(task, rows=len(sizes)), True
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
    return mean, mean_loss, detached


def _without_gradient(task: Task, *, rows: int) -> Tensor:
    """Losses of 0 that have a graph, and a gradient of exactly zero."""
    some = next(iter(task.parameters.values()))
    return some.new_zeros(rows).requires_grad_()


def _clipped_share(gradient: list[Tensor], item_clip_norm: float, rows: int) -> list[Tensor]:
    """A row's clipped gradient divided by ``rows``; all NaN where it is not finite.

    NaN makes the whole unit's mean NaN, so that the unit counts as non-finite.
    """
    squares = torch.tensor(squared_norm(gradient), dtype=torch.float64)
    factor = float(clip_factors(squares, l2_clip_norm=item_clip_norm)) or torch.nan
    return [part.double() * (factor / rows) for part in gradient]
