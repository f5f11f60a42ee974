"""How far below C the batched engines aim: a public constant for each dtype."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

_MARGINS = {torch.float64: 1e-5, torch.float32: 1e-3}
_NARROW_MARGIN = 1e-2


def margin(parameters: Iterable[Tensor]) -> float:
    """The margin for parameters of these dtypes, or under autocast; see `engines.bookkeeping`.

    It depends on dtypes alone: a margin that followed the number of units would itself move every
    contribution when one unit leaves.
    """
    found = []
    for parameter in parameters:
        if torch.is_autocast_enabled(parameter.device.type):
            return _NARROW_MARGIN
        found.append(_MARGINS.get(parameter.dtype, _NARROW_MARGIN))
    return max(found)
