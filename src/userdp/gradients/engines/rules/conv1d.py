"""`transformers`' Conv1D (GPT-2): a linear layer whose weight is transposed."""

from __future__ import annotations

import torch
from torch import Tensor

from userdp.gradients.engines.layer import Watcher, apply, names_of, stands_in_for
from userdp.gradients.engines.rules.linear import Linear


@stands_in_for(torch.addmm)
def _addmm(
    tape: Watcher, bias: Tensor, x: Tensor, weight: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor | None:
    """Rows and positions arrive flattened, rows first."""
    names = names_of(tape, weight, bias)
    if names is None or (beta, alpha) != (1, 1) or bias.dim() != 1 or x.dim() != 2:
        return None
    return apply(tape, Linear(tape, names, transposed=True), x, weight, bias)
