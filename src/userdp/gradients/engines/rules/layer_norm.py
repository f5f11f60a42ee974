"""Layer normalisation over the last dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from userdp.gradients.engines.layer import Layer, Watcher, apply, names_of, stands_in_for
from userdp.gradients.engines.uses import Dense, wide


@dataclass(frozen=True, slots=True)
class _LayerNorm(Layer):
    """Per unit, the weight's gradient is the sum of gy x̂ over its positions, the bias's of gy."""

    tape: Watcher
    names: tuple[str | None, ...]
    epsilon: float

    def forward(
        self, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        out, mean, rstd = torch.native_layer_norm(x, [x.shape[-1]], weight, bias, self.epsilon)
        return out, (x, mean, rstd, weight, bias)

    def backward(self, saved: Any, gradient: Tensor, needed: bool) -> Tensor | None:
        x, mean, rstd, weight, bias = saved
        name, bias_name = self.names
        to_input = None
        if needed:
            given = (gradient.contiguous(), x, [x.shape[-1]], mean, rstd, weight, bias)
            wanted = [True, False, False]
            to_input = torch.ops.aten.native_layer_norm_backward(*given, wanted)[0]
        gradient = gradient.to(rstd.dtype)
        if name is not None:
            pulls = (x.to(rstd.dtype) - mean).mul_(rstd).mul_(gradient)
            self.tape.keep(name, Dense(wide(self.tape.layout.summed(pulls))))
        if bias_name is not None:
            self.tape.keep(bias_name, Dense(wide(self.tape.layout.summed(gradient))))
        return to_input


@stands_in_for(F.layer_norm)
def _layer_norm(
    tape: Watcher,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    names = names_of(tape, weight, bias)
    if names is None or weight is None or len(normalized_shape) != 1 or weight.dtype != x.dtype:
        return None
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float32:
        return None
    return apply(tape, _LayerNorm(tape, names, eps), x, weight, bias)
