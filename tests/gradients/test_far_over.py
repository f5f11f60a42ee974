"""Units far over the clip norm, and padded ones: others change nothing of theirs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.campaign import losses, models
from tests.gradients.campaign.measure import without
from tests.gradients.campaign.models import renew
from tests.gradients.tiny import distance
from tests.speed import fast_then_slow
from userdp.gradients import Loss, Units, get_engine
from userdp.gradients.engines import batched
from userdp.gradients.engines.rules import grams, linear

ENGINES = ["auto", "reference"]
_UNUSUAL = 48  # made-up rows do not have it
SHORT = [[[n, n + 1, 3]] for n in range(6)]


class Headless(nn.Module):
    """A layer without bias over a frozen table, so that Gram matrices give its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 64).requires_grad_(False)
        self.table.weight.mul_(0.3)
        self.table.weight[_UNUSUAL] *= 100
        self.head = nn.Linear(64, 64, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.table(input_ids))
        return found


def scaled(scale: float) -> Loss:
    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        real = torch.arange(input_ids.shape[1]) < lengths[:, None]
        found = (model(input_ids).tanh().mean(2) * real).sum(1) / lengths
        return found * torch.where((input_ids == _UNUSUAL).any(1), scale, 1.0)

    return loss


def influence(engine: str, loss: Loss, clip: float) -> float:
    torch.manual_seed(0)
    model = Headless()
    units = Units.from_rows([*SHORT, [[_UNUSUAL, _UNUSUAL, 5, 6, 7]]])
    everybody, rest = (
        get_engine(engine)(model, loss, some, l2_clip_norm=clip)
        for some in (units, without(units, 6))
    )
    return distance(everybody, rest) / clip


SCALES = [10.0 ** (30 + e / 4) for e in range(0, 32, 2)]


@pytest.mark.parametrize("engine", fast_then_slow(ENGINES))
@pytest.mark.parametrize("clip", fast_then_slow([1e-8, 1e-7, 1e-6]))
def test_invariant_3_a_unit_far_over_the_clip_norm_adds_no_more_than_it(engine, clip):
    assert max(influence(engine, scaled(scale), clip) for scale in SCALES) <= 1


def test_invariant_3_twin_clip_factors_below_normal_float32_are_caught(monkeypatch):
    everyone = lambda factors: torch.stack(list(factors)).all(0)  # noqa: E731
    monkeypatch.setattr(batched, "multiplicable", everyone)
    monkeypatch.setattr(linear, "_LARGEST_SIDE", math.inf)
    monkeypatch.setattr(grams, "wide", Tensor.double)  # float32 norms end before such factors
    assert max(influence("auto", scaled(scale), 1e-8) for scale in SCALES) > 1.01


class WithDropout(models.Flattened):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        logits: Tensor = self.head(self.drop(self.hidden(input_ids)))
        return logits


def over_lengths(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """Not finite for a row of no tokens, which no store has."""
    return losses.own_rows(model, input_ids, lengths) * 3 / lengths.float()


def counted_as_zero(units: Units) -> int:
    model = WithDropout().train()
    renew(model, 0, scale=1.0)
    return get_engine("auto")(model, over_lengths, units, l2_clip_norm=0.01).non_finite


def test_a_unit_of_two_rows_makes_nobody_elses_count_as_zero() -> None:
    two = [[1, 2, 3], [4, 5, 6]]
    assert counted_as_zero(Units.from_rows(SHORT)) == 0
    assert counted_as_zero(Units.from_rows([*SHORT, two])) == 0
