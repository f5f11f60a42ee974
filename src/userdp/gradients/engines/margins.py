r"""How far below C the batched engines aim: a public constant for each precision.

**Fewer bits than float32: no batch.** In a batch, who else is there decides the order of additions,
and so the last bits of everybody's contribution: take one unit away, and each of the M others
changes by a relative rho. Nothing but :math:`M \rho \le m` covers that, if the units are alike:
then all change in one direction. In bfloat16 rho is 1e-3 to 1e-2: 199 units of six different rows
differed by 0.27 C between a batch and one at a time. So where a model is seen to compute in fewer
bits (`engines.precision`), batched engines hand everything to the reference, however many units
there are: a switch at some number would itself be such a change. There a unit's bits are its own,
and the reference's own margin is enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import nn

from userdp.gradients import reference
from userdp.gradients.clipping import require_clip_norm
from userdp.gradients.engines.precision import dtypes_of, is_narrow
from userdp.gradients.losses import Loss
from userdp.gradients.models import require_uncoupled
from userdp.gradients.rules import FLAT, ClipRule
from userdp.gradients.sums import ClippedSum
from userdp.gradients.units import Units

_MARGINS = {torch.float64: 1e-5, torch.float32: 1e-3}
LEAST_CLIP_NORM = 1e-30


def margin(dtypes: Iterable[torch.dtype]) -> float:
    """The margin of batches where the model computes in these dtypes; see `engines.bookkeeping`.

    It depends on dtypes alone: a margin that followed the number of units would itself move every
    contribution when one unit leaves. Where one is narrow there are no batches, and it is 0.

    >>> margin([torch.float32]), margin([torch.float32, torch.bfloat16])
    (0.001, 0.0)
    """
    used = set(dtypes)
    return 0.0 if any(map(is_narrow, used)) else max(_MARGINS[dtype] for dtype in used)


def batches(model: nn.Module, loss: Loss, units: Units) -> bool:
    """Whether several units may share a pass: the model computes in float32 or wider throughout."""
    return not any(map(is_narrow, dtypes_of(model, loss, units)))


def aim(model: nn.Module, loss: Loss, units: Units, *, l2_clip_norm: float) -> float:
    """The norm to clip at: ``l2_clip_norm`` less the margin of the precisions in use.

    Those are properties of the code, whatever the units hold: `precision.dtypes_of`.
    """
    require_clip_norm("l2_clip_norm", l2_clip_norm)
    # The reference's own margin alone is left at the very end of the range.
    least = margin(dtypes_of(model, loss, units))
    return max(LEAST_CLIP_NORM, l2_clip_norm * (1 - least))


def one_at_a_time(
    model: nn.Module,
    loss: Loss,
    units: Units,
    *,
    l2_clip_norm: float,
    item_clip_norm: float | None = None,
    micro_batch: int = 32,
    rule: ClipRule = FLAT,
) -> ClippedSum:
    """The reference engine's sum, clipped where the batched engines aim.

    Which of the two computes a cohort may depend on who is in it; with one aim for both, that
    changes nobody's contribution by more than rounding.
    """
    require_uncoupled(model)
    exact = reference.clipped_sum(
        model,
        loss,
        units,
        l2_clip_norm=aim(model, loss, units, l2_clip_norm=l2_clip_norm),
        item_clip_norm=item_clip_norm,
        micro_batch=micro_batch,
        rule=rule,
    )
    return replace(exact, sensitivity=float(l2_clip_norm))
