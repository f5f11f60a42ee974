"""The loss of a row comes from that row's own tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.tiny import masked, ragged, tiny
from userdp.gradients import Units, causal_lm_loss

FAMILIES = ["gpt2-tied", "gpt2-untied", "llama", "gpt-neox", "qwen2"]


def by_hand(model: nn.Module, row: Tensor, marks: Tensor) -> Tensor:
    """Mean of -log p(token | the tokens before it) over marked tokens, the row alone."""
    logits = model(input_ids=row[None]).logits[0]
    surprises = [
        -torch.log_softmax(logits[t - 1], -1)[row[t]] for t in range(1, len(row)) if marks[t]
    ]
    return torch.stack(surprises).mean() if surprises else logits.sum() * 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("units_of", [Units.from_rows, masked])
def test_each_row_loses_the_mean_surprise_of_its_own_targets(units_of, family):
    model, units = tiny(family, torch.float64), units_of(ragged([3, 1, 2]))
    losses = causal_lm_loss(model, units.input_ids, units.lengths, units.targets)
    marks = torch.ones_like(units.input_ids) if units.targets is None else units.targets
    each = zip(units.input_ids, marks, units.lengths.tolist(), strict=True)
    expected = torch.stack([by_hand(model, row[:n], marked[:n]) for row, marked, n in each])
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


@pytest.mark.pitfall(number=15)
def test_positions_arrive_with_shape_rows_by_length() -> None:
    model, shapes = tiny(), []
    model.register_forward_pre_hook(
        lambda module, args, given: shapes.extend(
            given[name].shape for name in ("input_ids", "position_ids")
        ),
        with_kwargs=True,
    )
    causal_lm_loss(model, torch.ones(3, 6, dtype=torch.int64), torch.tensor([6, 2, 4]))
    assert shapes == [(3, 5)] * 2
