r"""The book-keeping engine: many units in one backward pass, each clipped as if alone.

**What is guaranteed, and how.**

1. *Each unit's contribution has norm at most C(1 - m)*, m = `margin`. Where a layer's per-unit
   gradients are formed, the norm is taken of the very numbers that are added: worst case, the
   rounding of blocks of squares (6.1e-5) and of the weighted sum over a pass. Where the norm comes
   from Gram matrices it is formed by other operations than the sum. It is too small by at most
   1e-6, in the worst case (`uses.gram_error`: float64, and a bounded condition, else gradients are
   formed). The sum is a float32 product: on rows made to be worst (constant, so that all roundings
   go one way, and of the largest condition) it was 2.2e-4 too long; measured, not proven.
2. *What other units contribute does not depend on a unit's presence, up to rounding.* In a batch,
   shapes and places decide how the processor orders its additions; so does the longest row, to
   which the others are padded (padding itself contributes exact zeros). Take away one unit, and
   each other contribution may change in its last bits, by a relative rho; rho is about 1e-6 in
   float32 and 1e-15 in float64. (In fewer bits it is too much, and there are no batches:
   `engines.margins`.) The reference engine has no such term: there a unit's bits are its own. Here
   the margin covers the worst case, all M changes in one direction, while :math:`M \rho \le m`: M
   up to 1,000 in float32; and with high probability, the changes being independent and in no common
   direction with the unit itself, while :math:`M \rho^2 \le m`.

3. *Which engine computes is nobody's business.* A unit, or a whole cohort, that falls back to the
   reference engine is clipped at the same aim (`margins.aim`), so that who is in the cohort cannot
   rescale the others.

Sums over passes are float64. So the claim is worst-case in real arithmetic, and stands in floating
point on measured roundings, with m chosen to cover them; `reference` is the engine for those who
want the worst case throughout.

Source: Charles et al. 2024, Algorithm 2; the forms of `userdp.gradients.engines.uses`.
"""

from __future__ import annotations

from torch import nn

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
    r"""As `userdp.gradients.reference.clipped_sum`, with all units of a pass in one backward pass.

    Guarantee: that of the module's docstring. Every trainable parameter is covered: one that is
    used in a way without a rule is found by its ordinary gradient, and the reference engine then
    computes everything; so it does where the model computes in fewer bits than float32. A unit that
    is too large for one pass, or whose norm cannot be formed in float32, is computed by the
    reference engine alone.

    Args:
        model: as for the reference. Activation checkpointing (not reentrant) works.
        loss: per-row loss.
        units: the cohort.
        l2_clip_norm: C.
        item_clip_norm: the norm of each row before the rows are averaged; per-row gradients are
            then formed for all parameters.
        micro_batch: most rows in one pass.
        rule: form and split of the unit's clip, see the reference.

    Raises:
        UseError: as the reference.
    """
    masked, largest = units.targets is not None, (micro_batch, units.input_ids.shape[1])
    engine = (
        one_pass_sum
        if batches(model, loss, units)
        and agrees_with_reference(model, loss, masked=masked, largest=largest)
        else one_at_a_time
    )
    try:
        return engine(
            model,
            loss,
            units,
            l2_clip_norm=l2_clip_norm,
            item_clip_norm=item_clip_norm,
            micro_batch=micro_batch,
            rule=rule,
        )
    except NotCoveredError:
        return one_at_a_time(
            model,
            loss,
            units,
            l2_clip_norm=l2_clip_norm,
            item_clip_norm=item_clip_norm,
            micro_batch=micro_batch,
            rule=rule,
        )
