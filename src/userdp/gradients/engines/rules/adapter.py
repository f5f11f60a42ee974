r"""Adapters of `peft` (LoRA) and the frozen layer under them, as one layer.

A layer :math:`W` with an adapter computes :math:`y = W x + b + s\,B A x`. Written as `peft` writes
it, that is a product for each matrix, and two more passes over all of y for the scale and the sum,
each with one of its own in the backward pass. Here the adapter's product is added where the layer's
stands, and the scale is put on the r numbers between A and B. With :math:`h = A x`, and g the
gradient at y,

.. math:: \nabla_A = (s\,B^T g)\,x^T, \qquad \nabla_B = g\,(s\,h)^T, \qquad
          \nabla_x = W^T g + A^T (s\,B^T g).

The same numbers up to rounding. It stands in for the plain case alone: one adapter, no dropout, no
bias, no DoRA or other variant, nobody's hooks within, one precision. Whatever else `peft` can
do runs as `peft` wrote it, and its matrices are linear layers.

Source: Hu et al. 2022, Section 4.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from userdp.gradients.engines.layer import Layer, Watcher, apply, is_bare, replaces
from userdp.gradients.engines.rules.linear import Ghost
from userdp.gradients.modes import unwatched

_TYPES = (torch.float32, torch.float64)
_KINDS = (Tensor, nn.Parameter)
"""No sharded or quantized tensors, whose products are other functions."""


@dataclass(frozen=True, slots=True)
class _Adapted(Layer):
    """``x @ weight.T + bias + scale * (x @ a.T) @ b.T``; of the weight where ``transposed``.

    Attributes:
        tape: that watches.
        names: of A and B.
        transposed: whether the frozen weight is (inputs, outputs).
        scale: s.
    """

    tape: Watcher
    names: tuple[str, str]
    transposed: bool
    scale: float

    def forward(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        value = F.linear(x, weight.T if self.transposed else weight, bias)
        between = F.linear(x, a).mul_(self.scale)
        value.view(-1, value.shape[-1]).addmm_(between.view(-1, between.shape[-1]), b.T)
        return value, (x, between, weight, a, b)

    def backward(self, saved: Any, gradient: Tensor, needed: bool) -> Tensor | None:
        x, between, weight, a, b = saved
        to_between = (gradient @ b).mul_(self.scale)
        to_input = None
        if needed:
            to_input = gradient @ (weight.T if self.transposed else weight)
            flat = to_input.view(-1, to_input.shape[-1])
            flat.addmm_(to_between.view(-1, to_between.shape[-1]), a)
        stacked, (name_a, name_b) = self.tape.layout.stacked, self.names
        x = x.detach()  # what is kept would hold the graph that made it
        self.tape.keep(name_a, Ghost(stacked(to_between), stacked(x)))
        self.tape.keep(name_b, Ghost(stacked(gradient), stacked(between)))
        return to_input


@replaces(lambda kind: (kind.__module__, kind.__name__) == ("peft.tuners.lora.layer", "Linear"))
def _adapted(module: nn.Module, tape: Watcher) -> Callable[..., Any]:
    original = module.forward

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        found = None
        if not (args or kwargs) and torch.is_grad_enabled():
            with unwatched():  # what the rule asks, the model did not ask
                found = _run(tape, module, x)
        return original(x, *args, **kwargs) if found is None else found

    return forward


def _run(tape: Watcher, module: Any, x: Tensor) -> Tensor | None:
    """The module's value, on the tape; None where it is not the plain case."""
    active = [name for name in module.active_adapters if name in module.lora_A]
    if module.disable_adapters or module.merged or len(active) != 1:
        return None
    (key,) = active
    base, dropout, scale = module.base_layer, module.lora_dropout[key], module.scaling[key]
    a, b = module.lora_A[key], module.lora_B[key]
    kind = type(base)
    transposed = kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")
    plain = (
        (transposed or kind is nn.Linear)
        and {type(a), type(b)} == {nn.Linear}
        and (a.bias, b.bias) == (None, None)
        and all(map(is_bare, (base, dropout, a, b)))
        and not (dropout.training and getattr(dropout, "p", 0.0))
        and key not in getattr(module, "lora_variant", ())
        and not module.use_dora.get(key)
        and isinstance(scale, float | int)
        and not any(p.requires_grad for p in base.parameters())
        and not torch.is_autocast_enabled(x.device.type)
    )
    name_a, name_b = tape.name_of(a.weight), tape.name_of(b.weight)
    if not plain or name_a is None or name_b is None:
        return None
    given = [x, a.weight, b.weight, *base.parameters()]
    if not all(type(p) in _KINDS and p.dtype == x.dtype and p.dtype in _TYPES for p in given):
        return None
    layer = _Adapted(tape, (name_a, name_b), transposed, scale)
    return apply(tape, layer, x, base.weight, base.bias, a.weight, b.weight)
