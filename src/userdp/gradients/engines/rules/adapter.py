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
from typing import Any, NamedTuple

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
        flat = value.view(-1, value.shape[-1])
        flat.addmm_(between.view(-1, between.shape[-1]), b.T)
        return value, (x, between, weight, a, b)

    def backward(self, saved: Any, gradient: Tensor, needed: bool) -> Tensor | None:
        x, between, weight, a, b = saved
        to_between = (gradient @ b).mul_(self.scale)
        to_input = None
        if needed:
            to_input = gradient @ (weight.T if self.transposed else weight)
            flat = to_input.view(-1, to_input.shape[-1])
            flat.addmm_(to_between.view(-1, to_between.shape[-1]), a)
        layout, (name_a, name_b) = self.tape.layout, self.names
        x = x.detach()  # what is kept would hold the graph that made it
        self.tape.keep(name_a, Ghost(to_between, x, layout))
        self.tape.keep(name_b, Ghost(gradient, between, layout))
        return to_input


class _Plain(NamedTuple):
    """What a module with one plain adapter computes with."""

    weight: Tensor
    bias: Tensor | None
    transposed: bool
    a: Tensor
    b: Tensor
    scale: float


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


def _run(tape: Watcher, module: nn.Module, x: Tensor) -> Tensor | None:
    """The module's value, on the tape; None where it is not the plain case."""
    plain = _plain(module)
    if plain is None or torch.is_autocast_enabled(x.device.type):
        return None
    weight, bias, transposed, a, b, scale = plain
    tensors = [x, weight, a, b, *([] if bias is None else [bias])]
    names = tape.name_of(a), tape.name_of(b)
    if (
        x.dtype not in _TYPES
        or any(tensor.dtype != x.dtype or type(tensor) not in _KINDS for tensor in tensors)
        or not isinstance(scale, float | int)
        or weight.requires_grad
        or (bias is not None and bias.requires_grad)
        or names[0] is None
        or names[1] is None
    ):
        return None
    layer = _Adapted(tape, (names[0], names[1]), transposed, scale)
    return apply(tape, layer, x, weight, bias, a, b)


def _plain(module: Any) -> _Plain | None:
    """What ``module`` computes with; None where it does anything else, or somebody hooked in."""
    active = [name for name in module.active_adapters if name in module.lora_A]
    if module.disable_adapters or module.merged or len(active) != 1:
        return None
    (name,) = active
    if name in getattr(module, "lora_variant", ()) or module.use_dora.get(name):
        return None
    base, dropout = module.base_layer, module.lora_dropout[name]
    a, b = module.lora_A[name], module.lora_B[name]
    kind = type(base)
    transposed = kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")
    silent = type(dropout) is nn.Identity or (
        type(dropout) is nn.Dropout and (dropout.p == 0 or not dropout.training)
    )
    if not (
        silent
        and (transposed or kind is nn.Linear)
        and {type(a), type(b)} == {nn.Linear}
        and (a.bias, b.bias) == (None, None)
        and all(map(is_bare, (base, dropout, a, b)))
    ):
        return None
    return _Plain(base.weight, base.bias, transposed, a.weight, b.weight, module.scaling[name])
