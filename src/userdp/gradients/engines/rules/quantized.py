"""Frozen linear layers of four bits (`bitsandbytes`' Linear4bit), under adapters.

The layer is a constant matrix in another form: it is widened for the product and, in the backward
pass, once more, so that no pass keeps it wide. The numbers are the layer's own.

Layers of eight bits have no rule. LLM.int8 rounds each row's inputs to integers, which is a step
(`certificate.operations`), and finds its outlying columns in all rows of a pass together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from userdp.gradients.engines.layer import Layer, Watcher, apply, constant, replaces
from userdp.gradients.modes import unwatched


@dataclass(frozen=True, slots=True)
class _FourBits(Layer):
    module: nn.Module

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        module: Any = self.module
        return F.linear(x, self._widened(), module.bias), ()

    def backward(self, saved: Any, gradient: Tensor, needed: bool) -> Tensor | None:
        return gradient @ self._widened() if needed else None

    def _widened(self) -> Tensor:
        packed: Any = self.module.weight
        widen = sys.modules["bitsandbytes"].functional.dequantize_4bit
        matrix: Tensor = widen(packed.data.view(-1, 1), packed.quant_state)
        return matrix.float()


def _is_ours(kind: type[nn.Module]) -> bool:
    return kind.__name__ == "Linear4bit" and kind.__module__.startswith("bitsandbytes.")


@replaces(_is_ours)
def _four_bits(module: Any, tape: Watcher) -> Callable[..., Any] | None:
    if any(p.requires_grad for p in module.parameters(recurse=False)):
        return None
    original, layer = module.forward, _FourBits(module)

    def forward(x: Tensor) -> Any:
        wide = x.dtype == torch.float32 and module.compute_dtype in (None, torch.float32)
        packed = getattr(module.weight.quant_state, "packing_format_for_cpu", False)
        found = None
        if wide and not packed and torch.is_grad_enabled():
            with unwatched():  # what the rule asks, the model did not ask
                held = module.weight, module.bias
                if all(one is None or constant(tape, one) for one in held):
                    found = apply(tape, layer, x)
        return original(x) if found is None else found

    return forward
