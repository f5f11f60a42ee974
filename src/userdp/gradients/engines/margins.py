"""How far below C the batched engines aim: a public constant for each precision."""

from __future__ import annotations

from collections.abc import Iterable

import torch

_MARGINS = {torch.float64: 1e-5, torch.float32: 1e-3}
_NARROW_MARGIN = 1e-2


def margin(dtypes: Iterable[torch.dtype]) -> float:
    """The margin where parameters, activations or gradients have these dtypes; see `bookkeeping`.

    It depends on dtypes alone: a margin that followed the number of units would itself move every
    contribution when one unit leaves.

    >>> margin([torch.float32]), margin([torch.float32, torch.bfloat16])
    (0.001, 0.01)
    """
    return max(_MARGINS.get(dtype, _NARROW_MARGIN) for dtype in dtypes)
