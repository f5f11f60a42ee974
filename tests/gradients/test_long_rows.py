"""Rows longer than a model's configuration names: made-up ones end there, so batches do too."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from tests.gradients.batches import reason_alone
from tests.gradients.tiny import distance, own_tokens
from userdp.gradients import Units, get_engine
from userdp.gradients.certificate.made_up import most_tokens
from userdp.gradients.engines import choice, passes

LIMIT, CLIP = 16, 0.1


class Interpolated(nn.Module):
    """Positions are squeezed into those it was made for, by the width of the pass (Chen 2023)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        numbers = {"max_position_embeddings": LIMIT, "vocab_size": 50}
        self.config = SimpleNamespace(**numbers, to_dict=lambda: numbers)
        self.table, self.out = nn.Embedding(50, 32), nn.Linear(32, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        width = tokens.shape[1]
        places = torch.arange(width, dtype=torch.float32) * min(1.0, LIMIT / width)
        angles = places[:, None] * torch.exp(-torch.arange(16) / 4.0)
        return self.out(torch.tanh(self.table(tokens) + torch.cat([angles.sin(), angles.cos()], 1)))


def units(*lengths: int) -> Units:
    draw = torch.Generator().manual_seed(3)
    return Units.from_rows([[torch.randint(50, (n,), generator=draw).tolist()] for n in lengths])


def move(engine: str) -> float:
    """By how many clip norms the one long row moves the sum."""
    model, others = Interpolated(), [14, 12] * 6
    sums = [
        get_engine(engine)(model, own_tokens, units(*lengths), l2_clip_norm=CLIP)
        for lengths in ([*others, 60], others)
    ]
    return distance(*sums) / CLIP


def test_invariant_3_a_row_beyond_the_limit_moves_the_sum_by_at_most_the_clip_norm() -> None:
    assert most_tokens(Interpolated()) == LIMIT
    assert move("auto") <= 1


def test_invariant_3_twin_a_batch_with_such_a_row_is_caught(monkeypatch):
    """If a pass were as wide as the longest row of all, that is."""
    monkeypatch.setattr(choice, "most_tokens", lambda model: 1 << 30)
    assert move("auto") <= 1
    monkeypatch.setattr(passes, "padded_width", lambda tokens: 60)
    assert move("auto") > 1.1


def test_the_reason_is_told() -> None:
    model = Interpolated()
    assert "longer than" in str(reason_alone(model, own_tokens, units(60, 12)))
    assert "longer than" not in str(reason_alone(model, own_tokens, units(14, 12)))
