"""Opacus's clipping as benchmarks call it: a step over units, on a model that Opacus supports.

Opacus knows neither GPT-2's Conv1D nor tied tensors, so its model has Linear in place of the one
and an output layer of its own. It is imported only where it is called.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from userdp.gradients import Units, causal_lm_loss


def replace_conv1d(model: nn.Module) -> None:
    """Put Linear in place of every Conv1D: the same function."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Conv1D):
                inputs, outputs = child.weight.shape
                layer = nn.Linear(inputs, outputs, device="meta")  # its weights come next
                layer.weight = nn.Parameter(child.weight.detach().T.contiguous())
                layer.bias = child.bias
                setattr(parent, name, layer)


def supported(model: nn.Module) -> nn.Module:
    """A copy of the same function, without Conv1D and with an output layer of its own."""
    model = copy.deepcopy(model)
    replace_conv1d(model)
    head = model.get_submodule("lm_head")
    assert isinstance(head, nn.Linear)
    head.weight = nn.Parameter(head.weight.detach().clone())
    return model


class Contiguous(nn.Module):
    """Opacus flattens what an embedding is given with ``view``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, position_ids: Tensor, **options: Any) -> object:
        return self.model(
            input_ids=input_ids.contiguous(), position_ids=position_ids.contiguous(), **options
        )


def per_sample(
    model: nn.Module, *, group: int, l2_clip_norm: float
) -> Callable[[Units], list[Tensor]]:
    """A step by gradients of single sequences, averaged over units of ``group`` and clipped."""
    from opacus.grad_sample import GradSampleModule

    wrapped = GradSampleModule(Contiguous(model), loss_reduction="sum")
    parameters = [p for p in wrapped.parameters() if p.requires_grad]

    def step(units: Units) -> list[Tensor]:
        wrapped.zero_grad()
        causal_lm_loss(wrapped, units.input_ids, units.lengths).sum().backward()
        gradients = []
        for p in parameters:  # Opacus hangs `grad_sample` on them
            each = p.grad_sample
            gradients.append(each.view(-1, group, *each.shape[1:]).mean(1) if group > 1 else each)
        norms = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
        factors = (l2_clip_norm / norms).clamp(max=1)
        found = [torch.einsum("u,u...->...", factors, g) for g in gradients]
        for p in parameters:
            p.grad_sample = None
        return found

    return step


def ghost(model: nn.Module, *, l2_clip_norm: float) -> Callable[[Units], None]:
    """A step by ghost clipping, which clips single sequences: two passes over all of them."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(
        Contiguous(model), max_grad_norm=l2_clip_norm, use_ghost_clipping=True, loss_reduction="sum"
    )

    def step(units: Units) -> None:
        wrapped.zero_grad()
        losses = causal_lm_loss(wrapped, units.input_ids, units.lengths)
        losses.sum().backward(retain_graph=True)
        wrapped.zero_grad()
        factors = wrapped.get_clipping_coef()
        wrapped.disable_hooks()
        (factors * losses).sum().backward()
        wrapped.enable_hooks()

    return step
