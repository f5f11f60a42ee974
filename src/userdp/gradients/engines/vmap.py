"""The vmap engine: `torch.func` forms every unit's gradient, whatever the layers are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from userdp.errors import FailureError
from userdp.gradients import reference
from userdp.gradients.clipping import multiplicable, require_clip_norm
from userdp.gradients.coupling import require_rows_apart
from userdp.gradients.draws import Draws, draws_of, watching_host
from userdp.gradients.engines.chunks import passes
from userdp.gradients.engines.margins import aim, batches, one_at_a_time
from userdp.gradients.engines.one_pass import LEAST_CLIP, most_units
from userdp.gradients.engines.precision import Watch, require_no_masks
from userdp.gradients.engines.uses import squares
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
    """As `userdp.gradients.reference.clipped_sum`, with ``vmap(grad)`` over the units.

    Guarantee: as the book-keeping engine's (`userdp.gradients.engines.bookkeeping`), each norm
    taken of the very gradient that is added. Units of a pass are padded to the same number of rows.
    What ``vmap`` cannot trace (control flow or selections that depend on tensors, a loss that calls
    the model's own modules, an LSTM) and two-stage clips are computed by the reference engine, and
    so is a model that draws numbers which rows share. No two units meet in what is traced; the rows
    that pad a unit hold no tokens.

    Every unit's masks are its own (``randomness="different"``). Whether ``vmap`` can trace a model
    is a matter of code and shapes (Python cannot look into what it batches), not of what the masks
    are, so the reference engine may then draw anew. A unit whose norm is not finite would be drawn
    again for what its masks were: where the model draws, it counts as zero instead.

    Args:
        model: as for the reference.
        loss: per-row loss.
        units: the cohort.
        l2_clip_norm: C.
        item_clip_norm: see the reference.
        micro_batch: most rows in one pass.
        rule: form and split of the unit's clip, see the reference.

    Raises:
        UseError: as the reference.
    """
    require_clip_norm("l2_clip_norm", l2_clip_norm)
    require_count("micro_batch", micro_batch)
    require_uncoupled(model)
    largest = micro_batch, units.input_ids.shape[1]
    require_rows_apart(model, loss, masked=units.targets is not None, largest=largest)
    drawn = draws_of(model, loss, units)
    possible = item_clip_norm is None and l2_clip_norm >= LEAST_CLIP
    if possible and drawn is not Draws.SHARED and batches(model, loss, units):
        try:
            with _eager_attention(model):
                return _clipped_sum(model, loss, units, l2_clip_norm, micro_batch, rule, drawn)
        except (RuntimeError, AttributeError) as error:  # it traces no calls of submodules
            if isinstance(error, torch.OutOfMemoryError | FailureError):
                raise
    if l2_clip_norm < LEAST_CLIP:
        return reference.clipped_sum(
            model,
            loss,
            units,
            l2_clip_norm=l2_clip_norm,
            item_clip_norm=item_clip_norm,
            micro_batch=micro_batch,
            rule=rule,
        )
    return one_at_a_time(
        model,
        loss,
        units,
        l2_clip_norm=l2_clip_norm,
        item_clip_norm=item_clip_norm,
        micro_batch=micro_batch,
        rule=rule,
    )


@contextmanager
def _eager_attention(model: nn.Module) -> Iterator[None]:
    """`transformers` looks into the mask to choose a kernel, which ``vmap`` cannot follow."""
    kind = getattr(getattr(model, "config", None), "_attn_implementation", None)
    choose = getattr(model, "set_attn_implementation", None)
    if kind in (None, "eager") or choose is None:
        yield
        return
    try:
        choose("eager")
        yield
    finally:
        choose(kind)


class _With(nn.Module):
    """The model with other parameters: what a loss is handed inside ``vmap``."""

    _model: nn.Module
    _values: dict[str, Tensor]

    def __init__(self, model: nn.Module, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        self.__dict__["_model"] = model
        self.__dict__["_values"] = parameters

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self._model, self._values, args, kwargs)


def _clipped_sum(
    model: nn.Module,
    loss: Loss,
    units: Units,
    l2_clip_norm: float,
    micro_batch: int,
    rule: ClipRule,
    drawn: Draws,
) -> ClippedSum:
    parameters = trainable_parameters(model)
    sizes = {name: p.numel() for name, p in parameters.items()}
    detached = {name: p.detach() for name, p in parameters.items()}
    held = HeldState(model, loss)
    clip = aim(model, loss, units, l2_clip_norm=l2_clip_norm)
    total = {
        name: torch.zeros(p.shape, dtype=torch.float64, device=p.device)
        for name, p in parameters.items()
    }
    norms = torch.zeros(len(units), dtype=torch.float64)
    losses = torch.zeros(len(units), dtype=torch.float64)

    def unit_loss(
        values: dict[str, Tensor],
        input_ids: Tensor,
        lengths: Tensor,
        weights: Tensor,
        targets: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        rows = row_losses(loss, _With(model, values), input_ids, lengths, targets)
        total_loss = (rows * weights.to(rows.dtype)).sum()
        return total_loss, total_loss.detach()

    gradients: Callable[..., Any] = vmap(
        grad(unit_loss, has_aux=True),
        in_dims=(None, 0, 0, 0, None if units.targets is None else 0),
        randomness="different",
    )
    alone: list[int] = []
    non_finite = 0
    for begin, end in passes(units, rows=micro_batch, most_units=most_units(parameters, False)):
        part = units.select(begin, end)
        counts = part.offsets.diff()
        if int(counts.max()) == 0:
            continue
        if int(part.offsets[-1]) > micro_batch:
            alone += range(begin, end)
            continue
        with watching_host(drawn), Watch(units.input_ids.device.type) as watch:
            found, part_losses = gradients(detached, *_padded(part))
        if watch.narrow:  # see one_pass
            require_no_masks(drawn)
            alone += range(begin, end)
            continue
        wide = {name: g if g.dtype == torch.float64 else g.float() for name, g in found.items()}
        by_name = {name: squares(g) for name, g in wide.items()}
        square = torch.stack(list(by_name.values())).sum(0)
        factors = rule.factors(by_name, sizes, l2_clip_norm=clip)
        usable = square.isfinite() & multiplicable(factors.values())
        norms[begin:end], losses[begin:end] = square.sqrt().cpu(), part_losses.double().cpu()
        if drawn is Draws.NONE:
            alone += [begin + int(u) for u in (~usable).nonzero()]
        else:
            non_finite += int((~usable).sum())
        good = usable.nonzero().flatten()
        for name, g in wide.items():
            weighted = factors[name].to(g.dtype)[good] @ g[good].flatten(1)
            total[name].view(-1).add_(weighted)
    for unit in alone:
        exact = reference.clipped_sum(
            model,
            loss,
            units.select(unit, unit + 1),
            l2_clip_norm=clip,
            micro_batch=micro_batch,
            rule=rule,
        )
        norms[unit], losses[unit] = exact.norms[0], exact.losses[0]
        non_finite += exact.non_finite
        for name, value in exact.value.items():
            total[name] += value
    held.require_unchanged()
    return ClippedSum(
        value=total,
        norms=norms,
        losses=losses,
        non_finite=non_finite,
        sensitivity=float(l2_clip_norm),
    )


def _padded(units: Units) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """(units, rows, width) tokens, (units, rows) lengths, each row's weight, targets."""
    counts = units.offsets.diff()
    most, width = int(counts.max()), int(units.lengths.max())
    device = units.lengths.device
    places = torch.arange(most)
    real = places < counts[:, None]
    # A row that pads a unit is the unit's own first one, at weight 0: were it a row of no tokens, a
    # loss that divides by their number would leave no finite gradient, and how many rows pad a unit
    # is for the others in the pass to say. A unit of no rows has a token of nobody's.
    index = units.offsets[:-1, None] + torch.where(real, places, 0)
    index = index.clamp(max=int(units.offsets[-1]) - 1).to(device)
    some, real = (counts > 0)[:, None].to(device), real.to(device)
    input_ids = torch.where(some[..., None], units.input_ids[:, :width][index], 0)
    lengths = torch.where(some, units.lengths[index], 1)
    weights = torch.where(real, 1 / counts.clamp(min=1).double()[:, None].to(device), 0.0)
    targets = None if units.targets is None else units.targets[:, :width][index] & some[..., None]
    return input_ids, lengths, weights, targets
