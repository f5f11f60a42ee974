"""Autocast around a private gradient would reach norms and sums: nothing is computed under it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.batches import batched_sum
from tests.gradients.tiny import distance, own_tokens
from userdp.core.errors import UseError
from userdp.gradients import ENGINES, Units, get_engine
from userdp.gradients.engines import engine

CLIP = 0.05
ROW = [3, 7]


class Words(nn.Module):
    """A small language model whose first linear layer has Gram norms."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table, self.wide, self.head = (
            nn.Embedding(64, 96),
            nn.Linear(96, 160),
            nn.Linear(160, 64),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.head(torch.tanh(self.wide(self.table(tokens))))
        return found


def left_on(model: nn.Module, tokens: Tensor, lengths: Tensor) -> Tensor:
    """Turns autocast on and does not turn it off."""
    torch.set_autocast_enabled("cpu", True)
    return own_tokens(model, tokens, lengths)


@contextmanager
def autocast_restored() -> Iterator[None]:
    try:
        yield
    finally:
        torch.set_autocast_enabled("cpu", False)


def alike(count: int) -> Units:
    return Units.from_rows([[ROW]] * count)


@pytest.mark.parametrize("name", ENGINES)
def test_invariant_3_no_engine_computes_under_an_autocast_around_it(name: str) -> None:
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(UseError, match=r"around a private gradient.*fewer bits"),
    ):
        get_engine(name)(Words(), own_tokens, alike(3), l2_clip_norm=CLIP)


@pytest.mark.parametrize("name", ENGINES)
def test_invariant_3_an_autocast_that_is_left_on_is_refused(name: str) -> None:
    with autocast_restored(), pytest.raises(UseError, match="autocast"):
        get_engine(name)(Words(), left_on, alike(3), l2_clip_norm=CLIP)


def test_invariant_3_twin_under_autocast_a_unit_counts_for_more_than_the_clip_norm(monkeypatch):
    """Gram matrices in bfloat16 make some norms too small by more than the margin."""
    monkeypatch.setattr(engine, "require_no_autocast", lambda device: None)
    model = Words()

    def value(rows: list[list[int]]) -> dict[str, Tensor]:
        units = Units.from_rows([[row] for row in rows])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = batched_sum(
                model, own_tokens, units, l2_clip_norm=CLIP, micro_batch=256, strict=False
            )
        return found.value

    moved, others = 0.0, [[1, 2], [5, 6]]
    without = value(others)
    for row in ([36, 4], [27, 55], [48, 54]):  # of all pairs those whose norms are least
        moved = max(moved, distance(value([row, *others]), without))
    assert moved > 1.0003 * CLIP
