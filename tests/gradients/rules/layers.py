"""One layer of a kind between an embedding and a loss: what its rule gives, and what is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.batches import batched_sum
from userdp.gradients import Units, clipped_sum
from userdp.gradients.engines.layer import RULES
from userdp.gradients.engines.uses import Form

UNITS = Units.from_rows([[[1, 2, 3, 4], [5, 6]], [[2, 7, 1], [3, 9]], [[4, 4, 4, 4], [8, 1, 2]]])
"""As many rows in each, so that they share a pass."""
WIDTH = 8


class Around(nn.Module):
    """Looks tokens up and sends them through ``layer``; ``trained`` alone has gradients."""

    def __init__(self, layer: nn.Module, trained: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table, self.layer = nn.Embedding(11, WIDTH), layer
        self.table.requires_grad_(trained is None)
        for parameter in layer.parameters():
            nn.init.normal_(parameter)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.table

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.layer(self.table(tokens))
        return answer


def loss(model: nn.Module, tokens: Tensor, lengths: Tensor) -> Tensor:
    real = torch.arange(tokens.shape[1]) < lengths[:, None]
    answer: Tensor = (model(tokens).tanh().sum(2).square() * real).sum(1)
    return answer


def error(model: nn.Module, form: Form | None = None) -> float:
    """The largest relative error of a unit's norm, and of the sum at a clip that bites half."""
    model = model.double()
    exact = clipped_sum(model, loss, UNITS, l2_clip_norm=1e6)
    clip = float(exact.norms.median())
    exact = clipped_sum(model, loss, UNITS, l2_clip_norm=clip)
    ours = batched_sum(model, loss, UNITS, l2_clip_norm=clip, form=form)
    apart = max(float((ours.value[n] - v).norm()) for n, v in exact.value.items()) / clip
    return max(apart, float(((ours.norms - exact.norms) / exact.norms).abs().max()))


def without_rule(patch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    """Take a rule away, so that the parameter's ordinary gradient is met."""
    patch.delitem(RULES, function)
