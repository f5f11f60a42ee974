"""No parameter is skipped: what has no rule is found, and computed by the reference engine."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.batches import batched_sum
from tests.gradients.tiny import largest_move, ragged, tiny
from userdp.gradients import Units, clipped_sum, get_engine
from userdp.gradients.clipping import squared_norm
from userdp.gradients.engines.following import NotCoveredError
from userdp.gradients.engines.rules.embedding import Sparse
from userdp.gradients.engines.rules.linear import Ghost
from userdp.gradients.engines.uses import Form
from userdp.gradients.losses import causal_lm_loss


class Toy(nn.Module):
    """An embedding, a layer under test, and one number per row."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(23, 8)
        self.layer = layer

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.layer(self.embedding(input_ids)).square().flatten(1).mean(1)


def toy_loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    losses: Tensor = model(input_ids[:, :4])
    return losses


class Functional(nn.Module):
    """Uses its matrix in a way that no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.einsum("btd,de->bte", hidden, self.weight)


class Both(nn.Module):
    """Uses one matrix in a layer that has a rule and once more outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, hidden: Tensor) -> Tensor:
        product: Tensor = torch.einsum("btd,de->bte", self.linear(hidden), self.linear.weight)
        return product


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 6, batch_first=True)

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.lstm(hidden)[0]
        return found


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 3, 3)

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.convolution(hidden[:, None])
        return found


class PositionsFirst(nn.Module):
    """Flattens positions before rows: a layout that no rule can see."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, hidden: Tensor) -> Tensor:
        rows, positions, width = hidden.shape
        flat = hidden.transpose(0, 1).reshape(-1, width)
        found: Tensor = self.linear(flat).view(positions, rows, -1).transpose(0, 1)
        return found


class Twice(nn.Module):
    """One layer applied twice, as ALBERT does: its gradient is the sum over both."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.linear(torch.tanh(self.linear(hidden)))
        return found


@pytest.fixture
def units() -> Units:
    return Units.from_rows(ragged([2, 1, 3], shortest=5))


def largest_difference(model: nn.Module, units: Units, name: str) -> float:
    ours = get_engine(name)(model, toy_loss, units, l2_clip_norm=1e3)
    exact = clipped_sum(copy.deepcopy(model).double(), toy_loss, units, l2_clip_norm=1e3)
    torch.testing.assert_close(ours.norms, exact.norms, rtol=1e-5, atol=1e-8)
    return math.sqrt(squared_norm(ours.value[n] - v for n, v in exact.value.items()))


@pytest.mark.parametrize("name", ["auto"])
@pytest.mark.parametrize(
    "layer", [Functional, Both, Recurrent, Image, PositionsFirst, Twice, nn.Identity]
)
def test_every_parameter_gets_its_exact_gradient_whatever_uses_it(layer, name, units):
    torch.manual_seed(0)
    assert largest_difference(Toy(layer()), units, name) < 1e-5


@pytest.mark.parametrize("layer", [Functional, Both, Recurrent, Image])
def test_a_parameter_without_a_rule_is_named_not_skipped(layer, units):
    with pytest.raises(NotCoveredError, match="layer"):
        batched_sum(Toy(layer()), toy_loss, units, l2_clip_norm=1.0)


def no_cross_term(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sparse, "cross", lambda self, other: torch.zeros(len(self.tokens)).double())


def half_precision(patch: pytest.MonkeyPatch) -> None:
    honest = Ghost.squared_norms
    less = 1 - 2.0**-7
    patch.setattr(Ghost, "squared_norms", lambda self: honest(self).bfloat16().double() * less)


def skipped(patch: pytest.MonkeyPatch) -> None:
    """Norms without one layer, and a sum with it."""
    honest = Sparse.squared_norms
    patch.setattr(Sparse, "squared_norms", lambda self: 0 * honest(self))


@pytest.mark.pitfall(number=14)
@pytest.mark.parametrize(
    ("twin", "family", "sizes"),
    [
        (no_cross_term, "gpt2-tied", [2, 2, 2]),
        (half_precision, "gpt2-untied", [1] * 4),
        (skipped, "gpt2-untied", [1] * 4),
    ],
)
def test_invariant_3_twin_gram_norms_without_a_cross_term_in_half_precision_or_skipped_are_caught(
    twin, family, sizes, monkeypatch
):
    model, rows = tiny(family, torch.float64), ragged(sizes, seed=4)
    how = {"l2_clip_norm": 0.5, "form": Form.GHOST}
    ghosts = partial(batched_sum, model, causal_lm_loss, **how)
    assert largest_move(ghosts, rows) <= 0.5
    twin(monkeypatch)
    assert largest_move(ghosts, rows) > 0.5
