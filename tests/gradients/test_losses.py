"""The loss of a row comes from that row's own tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.tiny import tiny
from userdp.gradients import Units, causal_lm_loss

FAMILIES = ["gpt2-tied", "gpt2-untied", "llama", "gpt-neox", "qwen2"]


def by_hand(model: nn.Module, row: list[int]) -> Tensor:
    """Mean of -log p(token | the tokens before it), with the row alone and unpadded."""
    logits = model(input_ids=torch.tensor([row])).logits[0]
    surprises = [-torch.log_softmax(logits[t - 1], -1)[row[t]] for t in range(1, len(row))]
    return torch.stack(surprises).mean()


@pytest.mark.parametrize("family", FAMILIES)
def test_each_row_loses_the_mean_surprise_of_its_own_targets(family: str) -> None:
    model = tiny(family, torch.float64)
    rows = [[3, 1, 4, 1, 5, 9, 2], [6, 5], [3, 5, 8, 9]]
    units = Units.from_rows([rows])
    losses = causal_lm_loss(model, units.input_ids, units.lengths)
    expected = torch.stack([by_hand(model, row) for row in rows])
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_stands_in_the_padding_changes_neither_loss_nor_gradient(family: str) -> None:
    model = tiny(family)
    lengths = torch.tensor([3, 6, 1, 0])
    ids = torch.randint(0, 23, (4, 8), generator=torch.Generator().manual_seed(1))
    own = torch.arange(8) < lengths[:, None]
    results = []
    for tokens in (ids, torch.where(own, ids, -12345), torch.where(own, ids, 10**9)):
        losses = causal_lm_loss(model, tokens, lengths)
        results.append([losses, *torch.autograd.grad(losses.sum(), list(model.parameters()))])
    for one, two, three in zip(*results, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


class Spy(nn.Module):
    """Passes calls on and keeps the shapes of tokens and positions."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.shapes: list[torch.Size] = []

    def forward(self, input_ids: Tensor, position_ids: Tensor, use_cache: bool) -> object:
        self.shapes += [input_ids.shape, position_ids.shape]
        return self.model(
            input_ids=input_ids,
            position_ids=position_ids,
            use_cache=use_cache,
        )


@pytest.mark.pitfall(number=15)
def test_positions_arrive_with_shape_rows_by_length() -> None:
    spy = Spy(tiny())
    causal_lm_loss(spy, torch.ones(3, 6, dtype=torch.int64), torch.tensor([6, 2, 4]))
    assert spy.shapes == [(3, 5)] * 2
