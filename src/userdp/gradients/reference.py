"""The reference engine: one unit at a time, plain autograd. Slow, simple, and the oracle."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from userdp.errors import UseError
from userdp.gradients.clipping import (
    clip_factors,
    require_clip_norm,
    squared_norm,
    squared_norms,
)
from userdp.gradients.coupling import require_rows_apart
from userdp.gradients.draws import require_replayable
from userdp.gradients.held_state import HeldState
from userdp.gradients.losses import Loss, row_losses
from userdp.gradients.model_randomness import secretly
from userdp.gradients.models import (
    require_uncoupled,
    trainable_parameters,
)
from userdp.gradients.rules import FLAT, ClipRule
from userdp.gradients.sums import ClippedSum
from userdp.gradients.units import Units
from userdp.vocabulary import require_count


@secretly
def clipped_sum(
    model: nn.Module,
    loss: Loss,
    units: Units,
    *,
    l2_clip_norm: float,
    item_clip_norm: float | None = None,
    micro_batch: int = 32,
    rule: ClipRule = FLAT,
) -> ClippedSum:
    r"""Sum over units of each unit's mean gradient, clipped to L2 norm ``l2_clip_norm``.

    .. math::
        \sum_k \mathrm{clip}\Big(\frac{1}{|D_k|} \sum_{x \in D_k} \nabla \ell(\theta, x),\, C\Big)

    Guarantee: adding or removing one unit moves ``value`` by at most ``l2_clip_norm`` in L2,
    rounding included (see `userdp.gradients.clipping`). A unit's contribution is a function of the
    model and of that unit's rows: it is computed alone, padded to its own longest row, and added
    in float64. A unit with a NaN or infinite gradient contributes exactly zero. Dropout masks are
    secret, drawn anew for each pass, and a pass is one unit's: "at most" holds for equal masks of
    everybody else, which is what privacy needs (`userdp.gradients.model_randomness`).

    Args:
        model: in training or evaluation mode (left as it is); frozen parameters are left out,
            tied parameters count once. ``.grad`` is neither read nor written.
        loss: per-row loss, see `userdp.gradients.losses.Loss`.
        units: the cohort, on the model's device.
        l2_clip_norm: C, in gradient units; in [1e-30, 1e30].
        item_clip_norm: if given, each row's gradient is first clipped to this norm (two-stage
            clip): one unusual example then cannot decide the direction of its unit. Costs a
            backward pass per row. A unit with a non-finite row counts as zero as a whole.
        micro_batch: most rows of one unit in one pass; changes memory and rounding inside the
            unit's gradient, never the guarantee.
        rule: form of the unit's clip, and its split over layers (the clip of rows is always flat).

    Returns:
        `ClippedSum`; zeros for an empty cohort (a noise-only step that counts).

    Raises:
        UseError: a parameter is out of range; the model or the loss couples rows
            (`userdp.gradients.models.require_uncoupled`, `userdp.gradients.coupling`: one that does
            gives no batched engine the same sum, so none accepts it); or the model's random numbers
            cannot be kept (`userdp.gradients.draws.require_replayable`).
        FailureError: the model seeded a generator.

    Source: Charles et al. 2024, Algorithm 2 and Eq. 4 (ULS); with one row per unit, Algorithm 1
    (ELS). Chua et al. 2024, User-wise DP-SGD.
    """
    require_clip_norm("l2_clip_norm", l2_clip_norm)
    if item_clip_norm is not None:
        require_clip_norm("item_clip_norm", item_clip_norm)
    require_count("micro_batch", micro_batch)
    require_uncoupled(model)
    require_rows_apart(model, loss, masked=units.targets is not None)
    require_replayable(model, loss, units)
    held = HeldState(model, loss)
    found = sum_of_units(
        model,
        loss,
        units,
        l2_clip_norm=l2_clip_norm,
        item_clip_norm=item_clip_norm,
        micro_batch=micro_batch,
        rule=rule,
    )
    held.require_unchanged()
    return found


def sum_of_units(
    model: nn.Module,
    loss: Loss,
    units: Units,
    *,
    l2_clip_norm: float,
    item_clip_norm: float | None,
    micro_batch: int,
    rule: ClipRule,
) -> ClippedSum:
    """`clipped_sum` without its checks, with the generators as they are."""
    parameters = trainable_parameters(model)
    tensors = list(parameters.values())
    sizes = {name: p.numel() for name, p in parameters.items()}
    total = {
        name: torch.zeros(p.shape, dtype=torch.float64, device=p.device)
        for name, p in parameters.items()
    }
    norms = torch.zeros(len(units), dtype=torch.float64)
    losses = torch.zeros(len(units), dtype=torch.float64)
    non_finite = 0
    for unit, (input_ids, lengths) in enumerate(units):
        targets = units.targets_of(unit)
        if lengths.shape[0] == 0:
            continue
        if item_clip_norm is None:
            gradient, losses[unit] = _mean_gradient(
                model, loss, tensors, input_ids, lengths, targets, micro_batch=micro_batch
            )
        else:
            gradient, losses[unit] = _mean_clipped_gradient(
                model,
                loss,
                tensors,
                input_ids,
                lengths,
                targets,
                item_clip_norm=item_clip_norm,
            )
        squares = dict(zip(total, squared_norms(gradient), strict=True))
        norms[unit] = torch.stack(list(squares.values())).sum().sqrt()
        if not bool(norms[unit].isfinite()):
            non_finite += 1
            continue
        factors = rule.factors(squares, sizes, l2_clip_norm=l2_clip_norm)
        each = torch.stack([factors[name] for name in total]).tolist()
        for into, part, factor in zip(total.values(), gradient, each, strict=True):
            into.add_(part, alpha=factor)
    return ClippedSum(
        value=total,
        norms=norms,
        losses=losses,
        non_finite=non_finite,
        sensitivity=float(l2_clip_norm),
    )


def _mean_gradient(
    model: nn.Module,
    loss: Loss,
    parameters: list[nn.Parameter],
    input_ids: Tensor,
    lengths: Tensor,
    targets: Tensor | None,
    *,
    micro_batch: int,
) -> tuple[list[Tensor], float]:
    """The gradient of the mean of the rows' losses, and that mean."""
    rows = lengths.shape[0]
    mean: list[Tensor] | None = None
    mean_loss = 0.0
    for begin in range(0, rows, micro_batch):
        part, losses = _gradient_of_sum(
            model,
            loss,
            parameters,
            input_ids[begin : begin + micro_batch],
            lengths[begin : begin + micro_batch],
            None if targets is None else targets[begin : begin + micro_batch],
            weight=1 / rows,
        )
        mean_loss += losses
        mean = part if mean is None else [a + b for a, b in zip(mean, part, strict=True)]
    assert mean is not None
    return mean, mean_loss


def _mean_clipped_gradient(
    model: nn.Module,
    loss: Loss,
    parameters: list[nn.Parameter],
    input_ids: Tensor,
    lengths: Tensor,
    targets: Tensor | None,
    *,
    item_clip_norm: float,
) -> tuple[list[Tensor], float]:
    """The mean over rows of each row's gradient clipped to ``item_clip_norm``; and the mean loss.

    A row that is not finite makes the whole mean NaN, so that the unit counts as non-finite.
    """
    rows = lengths.shape[0]
    mean = [torch.zeros(p.shape, dtype=torch.float64, device=p.device) for p in parameters]
    mean_loss = 0.0
    for row in range(rows):
        here = slice(row, row + 1)
        counted = None if targets is None else targets[here]
        part, row_loss = _gradient_of_sum(
            model, loss, parameters, input_ids[here], lengths[here], counted, weight=1.0
        )
        squares = torch.tensor(squared_norm(part), dtype=torch.float64)
        factor = float(clip_factors(squares, l2_clip_norm=item_clip_norm))
        for into, item in zip(mean, part, strict=True):
            if factor == 0.0:
                into.fill_(torch.nan)
            else:
                into.add_(item, alpha=factor / rows)
        mean_loss += row_loss / rows
    return mean, mean_loss


def _gradient_of_sum(
    model: nn.Module,
    loss: Loss,
    parameters: list[nn.Parameter],
    input_ids: Tensor,
    lengths: Tensor,
    targets: Tensor | None,
    *,
    weight: float,
) -> tuple[list[Tensor], float]:
    """The gradient of ``weight`` times the sum of the rows' losses, in float32 or wider."""
    rows = lengths.shape[0]
    width = int(lengths.max())
    with torch.enable_grad():
        counted = None if targets is None else targets[:, :width]
        losses = row_losses(loss, model, input_ids[:, :width], lengths, counted)
        if losses.shape != (rows,):
            raise UseError(
                f"the loss must return one number per row, shape ({rows},), got "
                f"{tuple(losses.shape)}: a loss averaged over the batch makes one user's gradient "
                "depend on the others"
            )
        if not losses.requires_grad:
            raise UseError(
                "the loss does not depend on any trainable parameter, so its gradient is nothing",
                hint="do not detach the loss, nor compute it under torch.no_grad()",
            )
        total = losses.sum() * weight
        gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    wide = [
        torch.zeros_like(p, dtype=_wide(p.dtype)) if g is None else g.to_dense().to(_wide(p.dtype))
        for p, g in zip(parameters, gradients, strict=True)
    ]
    return wide, float(total.detach())


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
