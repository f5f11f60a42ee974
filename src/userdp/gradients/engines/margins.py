r"""How far below C the batched engines aim, and for how many units: constants of a precision.

In a batch, who else is there decides the order of additions, and so the last bits of everybody's
contribution: take one unit away, and each other one changes by a relative rho, `_ROUNDING`. With
the unit's own part at most C(1 - m), and the M others' changes independent and in no common
direction, the sum moves by at most :math:`C \sqrt{(1 - m)^2 + M \rho^2}`, which is below C while
:math:`M \rho^2 \le 2m - m^2`: `most_units`. That is 2e9 units in float32, more than any cohort, and
199 where anything is computed in bfloat16 or float16. Beyond, units are computed one at a time
(`covering`), where nobody's bits depend on anybody else.

**The switch between the two tells nothing.** It depends on the number of units, so one unit more
may switch. Both sides clip at one aim. With M = `most_units` units in a batch and M + 1 one at a
time, the M others change by their rounding, rho each, which is what was just covered; with more on
both sides nothing changes at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import nn

from userdp.gradients import reference
from userdp.gradients.clipping import require_clip_norm
from userdp.gradients.engines.precision import dtypes_of
from userdp.gradients.losses import Loss
from userdp.gradients.models import require_uncoupled
from userdp.gradients.rules import FLAT, ClipRule
from userdp.gradients.sums import ClippedSum
from userdp.gradients.units import Units

_MARGINS = {torch.float64: 1e-5, torch.float32: 1e-3}
_NARROW_MARGIN = 1e-2
_ROUNDING = {torch.float64: 1e-15, torch.float32: 1e-6}
_NARROW_ROUNDING = 1e-2
LEAST_CLIP_NORM = 1e-30


def margin(dtypes: Iterable[torch.dtype]) -> float:
    """The margin where the model computes in these dtypes; see `engines.bookkeeping`.

    It depends on dtypes alone: a margin that followed the number of units would itself move every
    contribution when one unit leaves.

    >>> margin([torch.float32]), margin([torch.float32, torch.bfloat16])
    (0.001, 0.01)
    """
    return max(_MARGINS.get(dtype, _NARROW_MARGIN) for dtype in dtypes)


def most_units(dtypes: Iterable[torch.dtype]) -> int:
    """Units of one cohort that batches may hold where the model computes in these dtypes.

    >>> most_units([torch.float32]), most_units([torch.float32, torch.float16])
    (1999000000, 199)
    """
    used = set(dtypes)
    m, rho = margin(used), max(_ROUNDING.get(dtype, _NARROW_ROUNDING) for dtype in used)
    return int((2 * m - m * m) / rho**2 * (1 + 1e-12))  # 1999000000 exactly, not one less


def aim(model: nn.Module, loss: Loss, units: Units, *, l2_clip_norm: float) -> float:
    """The norm to clip at: ``l2_clip_norm`` less the margin of the precisions in use.

    Those are properties of the code, whatever the units hold: `precision.dtypes_of`.
    """
    require_clip_norm("l2_clip_norm", l2_clip_norm)
    # The reference's own margin alone is left at the very end of the range.
    least = margin(dtypes_of(model, loss, units))
    return max(LEAST_CLIP_NORM, l2_clip_norm * (1 - least))


def covered(model: nn.Module, loss: Loss, units: Units, *, cohort: int | None = None) -> bool:
    """Whether the margin covers a cohort of so many units in batches; of ``units``, by default."""
    count = len(units) if cohort is None else cohort
    return count <= most_units(dtypes_of(model, loss, units))


def covering(
    engine: Callable[..., ClippedSum],
    model: nn.Module,
    loss: Loss,
    units: Units,
    *,
    cohort: int,
) -> Callable[..., ClippedSum]:
    """``engine`` if it may compute a part of such a cohort, else `one_at_a_time`.

    Args:
        engine: see `userdp.gradients.get_engine`; by itself it sees the part only.
        model: to be clipped.
        loss: per-row loss.
        units: the part.
        cohort: all units that are added up before the noise.
    """
    if engine is reference.clipped_sum or covered(model, loss, units, cohort=cohort):
        return engine
    return one_at_a_time


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
