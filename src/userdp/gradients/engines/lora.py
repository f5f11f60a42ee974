"""The LoRA engine: low-rank adapters' gradients are so small that all are formed, per unit."""

from __future__ import annotations

from torch import nn

from userdp.gradients.engines.forms import Form
from userdp.gradients.engines.margins import batches, one_at_a_time
from userdp.gradients.engines.one_pass import NotCoveredError, one_pass_sum
from userdp.gradients.engines.verify import agrees_with_reference
from userdp.gradients.losses import Loss
from userdp.gradients.model_randomness import secretly
from userdp.gradients.rules import FLAT, ClipRule
from userdp.gradients.sums import ClippedSum
from userdp.gradients.units import Units


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
    """As the book-keeping engine, with every per-unit gradient formed.

    Guarantee: as the book-keeping engine's, without Gram matrices: each norm is taken of the very
    gradient that is added. For adapters A (r x d) and B (p x r) the per-unit products
    ``B_u^T A_u`` cost what the ordinary ones do, and U r (d + p) numbers of memory. The frozen base
    costs nothing beyond its activations' gradients.

    Args:
        model: with any parameters trainable; meant for adapters.
        loss: per-row loss.
        units: the cohort.
        l2_clip_norm: C.
        item_clip_norm: see the reference.
        micro_batch: most rows in one pass.
        rule: form and split of the unit's clip, see the reference.

    Raises:
        UseError: as the reference.

    Source: Hu et al. 2022 (LoRA); Chua et al. 2024, Section 5 (per-user gradients of adapters).
    """
    masked, largest = units.targets is not None, (micro_batch, units.input_ids.shape[1])
    if batches(model, loss, units) and agrees_with_reference(
        model, loss, masked=masked, largest=largest
    ):
        try:
            return one_pass_sum(
                model,
                loss,
                units,
                l2_clip_norm=l2_clip_norm,
                item_clip_norm=item_clip_norm,
                micro_batch=micro_batch,
                rule=rule,
                form=Form.FORMED,
            )
        except NotCoveredError:
            pass
    return one_at_a_time(
        model,
        loss,
        units,
        l2_clip_norm=l2_clip_norm,
        item_clip_norm=item_clip_norm,
        micro_batch=micro_batch,
        rule=rule,
    )
