"""Products written as such: ``x @ weight``, and ``weight @ x`` with positions last (Mamba)."""

from __future__ import annotations

import torch
from torch import Tensor

from userdp.gradients.certificate.places import FIRST
from userdp.gradients.engines.layer import Watcher, apply, by_row, names_of, stands_in_for
from userdp.gradients.engines.rules.linear import Linear
from userdp.gradients.modes import unwatched


@stands_in_for(torch.matmul)
@stands_in_for(torch.Tensor.matmul)
@stands_in_for(torch.Tensor.__matmul__)
def _matmul(tape: Watcher, left: Tensor, right: Tensor) -> Tensor | None:
    if right.dim() == 2 and left.dim() >= 2:
        names = names_of(tape, right)
        if names is None or tape.name_of(left) is not None:
            return None
        return apply(tape, Linear(tape, (names[0], None), transposed=True), left, right, None)
    if left.dim() == 2 and right.dim() >= 3 and by_row(tape, right):
        names = names_of(tape, left)
        if names is None or tape.name_of(right) is not None:
            return None
        with unwatched():
            turned = tape.mark(right.transpose(-1, -2), FIRST)
            value = apply(tape, Linear(tape, (names[0], None)), turned, left, None)
            return None if value is None else tape.mark(value.transpose(-1, -2), FIRST)
    return None
