"""How far below C the batched engines aim: a public constant for each precision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from userdp.gradients import reference
from userdp.gradients.clipping import require_clip_norm
from userdp.gradients.losses import Loss, row_losses
from userdp.gradients.models import require_uncoupled
from userdp.gradients.rules import FLAT, ClipRule
from userdp.gradients.sums import ClippedSum
from userdp.gradients.units import Units

_MARGINS = {torch.float64: 1e-5, torch.float32: 1e-3}
_NARROW_MARGIN = 1e-2
LEAST_CLIP_NORM = 1e-30
_autocasts: WeakKeyDictionary[nn.Module, WeakKeyDictionary[Loss, set[torch.dtype]]]
_autocasts = WeakKeyDictionary()


def margin(dtypes: Iterable[torch.dtype]) -> float:
    """The margin where the model computes in these dtypes; see `engines.bookkeeping`.

    It depends on dtypes alone: a margin that followed the number of units would itself move every
    contribution when one unit leaves.

    >>> margin([torch.float32]), margin([torch.float32, torch.bfloat16])
    (0.001, 0.01)
    """
    return max(_MARGINS.get(dtype, _NARROW_MARGIN) for dtype in dtypes)


def aim(model: nn.Module, loss: Loss, units: Units, *, l2_clip_norm: float) -> float:
    """The norm to clip at: ``l2_clip_norm`` less the margin of the precisions in use.

    Those are the dtypes of all parameters, frozen ones included, and that of an autocast inside
    ``loss``: properties of the code, whatever the units hold. (An autocast is seen in a forward
    pass over one row, once for each model and loss.)
    """
    require_clip_norm("l2_clip_norm", l2_clip_norm)
    dtypes = {p.dtype for p in model.parameters()}
    known = _autocasts.setdefault(model, WeakKeyDictionary())
    if loss not in known and len(units.lengths):
        known[loss] = _autocast_dtypes(model, loss, units)
    # The reference's own margin alone is left at the very end of the range.
    return max(LEAST_CLIP_NORM, l2_clip_norm * (1 - margin(dtypes | known.get(loss, set()))))


def _autocast_dtypes(model: nn.Module, loss: Loss, units: Units) -> set[torch.dtype]:
    found: set[torch.dtype] = set()
    device = units.input_ids.device.type

    def look(module: nn.Module, arguments: Any) -> None:
        if torch.is_autocast_enabled(device):
            found.add(torch.get_autocast_dtype(device))

    handle = model.register_forward_pre_hook(look)
    try:
        with torch.no_grad():
            first = None if units.targets is None else units.targets[:1]
            row_losses(loss, model, units.input_ids[:1], units.lengths[:1], first)
    finally:
        handle.remove()
    return found


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
