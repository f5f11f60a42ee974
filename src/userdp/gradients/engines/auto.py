"""The choice of an engine, with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from userdp.gradients import reference
from userdp.gradients.draws import Draws, draws_of
from userdp.gradients.engines import bookkeeping, lora
from userdp.gradients.engines.margins import batches, one_at_a_time
from userdp.gradients.engines.one_pass import LEAST_CLIP
from userdp.gradients.engines.verify import agrees_with_reference
from userdp.gradients.losses import Loss
from userdp.gradients.model_randomness import secretly
from userdp.gradients.models import trainable_parameters
from userdp.gradients.rules import FLAT, ClipRule
from userdp.gradients.sums import ClippedSum
from userdp.gradients.units import Units

_LOW_RANK = 256
_FEW = 0.05


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
    """The engine for this model and these units."""
    if l2_clip_norm < LEAST_CLIP:
        return Choice(
            engine="reference",
            reason=f"l2_clip_norm is below {LEAST_CLIP:g}, where float32 squares vanish",
        )
    if len(units) and int(units.offsets.diff().min()) > micro_batch:
        return Choice(
            engine="reference",
            reason=f"every unit has more than micro_batch = {micro_batch} rows: one at a time, "
            "accumulated over passes, costs no more than an ordinary step",
        )
    if not batches(model, loss, units):
        return Choice(
            engine="reference",
            reason="the model computes in fewer bits than float32, and in a batch everybody's "
            "rounding would depend on who else is there: one at a time",
        )
    largest = micro_batch, units.input_ids.shape[1]
    if not agrees_with_reference(model, loss, masked=units.targets is not None, largest=largest):
        return Choice(
            engine="reference",
            reason="some trainable parameter is used in a way that has no per-unit rule, or it is "
            "not seen that rows are kept apart (tokens are selected, sorted or routed)",
        )
    if draws_of(model, loss, units) is Draws.SHARED:
        return Choice(
            engine="reference",
            reason="the model draws random numbers that all rows of a pass share (a coin that "
            "skips a layer, dropout of positions or weights), so each unit has passes of its own",
        )
    parameters = trainable_parameters(model)
    trained = sum(p.numel() for p in parameters.values())
    everything = sum(p.numel() for p in model.parameters())
    low_rank = all(p.dim() < 2 or min(p.shape) <= _LOW_RANK for p in parameters.values())
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
    """The clipped sum by the engine that `choose` takes; guarantee and errors are that engine's."""
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
    choice = choose(model, loss, units, l2_clip_norm=l2_clip_norm, micro_batch=micro_batch)
    engines = {
        "reference": one_at_a_time,
        "bookkeeping": bookkeeping.clipped_sum,
        "lora": lora.clipped_sum,
    }
    return engines[choice.engine](
        model,
        loss,
        units,
        l2_clip_norm=l2_clip_norm,
        item_clip_norm=item_clip_norm,
        micro_batch=micro_batch,
        rule=rule,
    )
