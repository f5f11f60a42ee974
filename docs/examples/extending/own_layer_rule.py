"""A layer rule of your own: PReLU, x where x > 0 and a · x elsewhere, with trained a.

What the engines have no rule for is computed one unit at a time: right, and slow. A rule stands in
for one of torch's functions while a pass is watched. It computes the same value and the same
gradient for its input, and hands over each unit's gradient of the parameter in place of the sum:
for PReLU the sum over the unit's positions of x · gradient where x <= 0.

Importing the module registers the rule. ``userdp selftest`` and the tests of this page compare it
with one unit at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from userdp.gradients.engines.layer import Layer, Watcher, apply, names_of, stands_in_for
from userdp.gradients.engines.uses import Dense, wide


@dataclass(frozen=True, slots=True)
class PReLU(Layer):
    """One slope for each of the last dimension's numbers, or one for all."""

    tape: Watcher
    name: str

    def forward(self, x: Tensor, slope: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return torch.where(x > 0, x, slope * x), (x, slope)

    def backward(self, saved: Any, gradient: Tensor, needed: bool) -> Tensor | None:
        x, slope = saved
        below = torch.where(x > 0, 0.0, x * gradient)
        if slope.numel() == 1:
            below = below.sum(-1, keepdim=True)
        # `summed`: over each unit's positions. `wide`: float32 or wider, whatever the pass is in.
        self.tape.keep(self.name, Dense(self.tape.layout.summed(wide(below))))
        return torch.where(x > 0, gradient, slope * gradient) if needed else None


@stands_in_for(F.prelu)
def prelu(tape: Watcher, x: Tensor, weight: Tensor) -> Tensor | None:
    """None where the rule does not apply: another layout, another dtype, nothing trained."""
    names = names_of(tape, weight)
    several = weight.numel() > 1 and x.dim() != 2  # torch counts channels in dimension 1
    if names is None or names[0] is None or several or x.dtype != weight.dtype:
        return None
    return apply(tape, PReLU(tape, names[0]), x, weight)
