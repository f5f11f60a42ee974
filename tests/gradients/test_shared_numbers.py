"""A number made of all rows of a pass, wherever a function takes one, ends the proof of the pass.

A bias, a frozen weight, an epsilon or a scale may be a tensor that somebody's tokens made. Whoever
holds the rare token would move everybody's loss by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.batches import batched_sum
from tests.gradients.tiny import distance, row_squares
from userdp.gradients import ClippedSum, Units, get_engine
from userdp.gradients.engines import certify, layer
from userdp.gradients.engines.following import NotCoveredError

pytestmark = pytest.mark.usefixtures("unknown_goes_on")

WIDTH, VOCABULARY, RARE, CLIP = 8, 30_000, 17_771, 0.1
UNITS = Units.from_rows([[[1 + u, RARE if u == 3 else 2, 3 + u]] for u in range(8)])
OTHERS = Units.from_rows([[[1 + u, 2, 3 + u]] for u in range(8) if u != 3])

Use = Callable[["Shared", Tensor, Tensor], Tensor]


class Shared(nn.Module):
    """Looks tokens up, and computes with how often the whole pass has the rare one."""

    def __init__(self, use: Use) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.w = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.v = nn.Parameter(torch.randn(WIDTH))
        self.kernel = nn.Parameter(torch.randn(WIDTH, WIDTH, 1))
        self.register_buffer("eye", torch.eye(WIDTH))
        self.use = use

    def get_input_embeddings(self) -> nn.Embedding:
        return self.table

    def forward(self, tokens: Tensor) -> Tensor:
        rare = (tokens == RARE).double().sum() * 5
        return self.use(self, self.table(tokens), rare)


def swapped(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """With positions last."""
    return lambda x: function(x.transpose(1, 2)).transpose(1, 2)


def flat(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """With rows and positions in one dimension."""
    return lambda x: function(x.reshape(-1, WIDTH)).view(x.shape)


def attended(x: Tensor, **options: Any) -> Tensor:
    y = x[:, None]
    return F.scaled_dot_product_attention(y, y, y, is_causal=True, **options)[:, 0]


ONES: Any = (WIDTH,)
IN_RULES: dict[str, Use] = {
    "bias of a linear layer": lambda m, x, n: F.linear(x, m.w, n.expand(WIDTH)),
    "frozen weight of one": lambda m, x, n: F.linear(x, m.eye + n, m.v),
    "bias of addmm": lambda m, x, n: flat(lambda y: torch.addmm(n.expand(WIDTH), y, m.w))(x),
    "bias of a norm": lambda m, x, n: F.layer_norm(x, ONES, m.v, n.expand(WIDTH)),
    "frozen weight of a norm": lambda m, x, n: F.layer_norm(x, ONES, 1 + n.expand(WIDTH), m.v),
    "epsilon of a norm": lambda m, x, n: F.layer_norm(x, ONES, m.v, None, 1e-5 + n),
    "epsilon of an RMS norm": lambda m, x, n: F.rms_norm(x, ONES, m.v, 1e-5 + n),
    "bias of a convolution": lambda m, x, n: swapped(
        lambda y: F.conv1d(y, m.kernel, n.expand(WIDTH))
    )(x),
    "frozen kernel": lambda m, x, n: swapped(lambda y: F.conv1d(y, (m.eye + n)[..., None], m.v))(x),
    "a parameter made in the pass": lambda m, x, n: F.linear(x, m.w) * nn.Parameter(1 + n),
    "the same as a frozen weight": lambda m, x, n: F.linear(x, nn.Parameter(m.eye + n), m.v),
}
IN_PLACES: dict[str, Use] = {
    "scale of attention": lambda m, x, n: attended(x, scale=1 + n),
    "beta of baddbmm": lambda m, x, n: torch.baddbmm(
        x, x, m.eye.expand(len(x), -1, -1), beta=1 + n
    ),
    "alpha of baddbmm": lambda m, x, n: torch.baddbmm(
        x, x, m.eye.expand(len(x), -1, -1), alpha=1 + n
    ),
    "alpha of an addition": lambda m, x, n: torch.add(x, x, alpha=n),
    "a factor": lambda m, x, n: x * (1 + n),
}
USES = {**IN_RULES, **IN_PLACES}
"""Of a constant they end the proof as well: it does not show."""


def moved(model: nn.Module, compute: Callable[..., ClippedSum]) -> float:
    """How far the sum moves when the unit with the rare token leaves, in clip norms."""
    return (
        distance(*(compute(model, row_squares, u, l2_clip_norm=CLIP) for u in (UNITS, OTHERS)))
        / CLIP
    )


@pytest.mark.parametrize("use", USES)
def test_invariant_3_a_pass_with_a_number_of_all_rows_is_not_proved(use: str) -> None:
    model = Shared(USES[use]).double()
    with pytest.raises(NotCoveredError):
        batched_sum(model, row_squares, UNITS, l2_clip_norm=CLIP)


@pytest.mark.parametrize("use", ["frozen weight of one", "scale of attention", "bias of a norm"])
def test_invariant_3_the_sum_moves_by_the_clip_norm_at_most(use: str) -> None:
    assert moved(Shared(USES[use]).double(), get_engine("auto")) <= 1


@pytest.mark.parametrize("use", ["frozen weight of one", "epsilon of a norm", "bias of a norm"])
def test_invariant_3_twin_rules_that_do_not_look_at_other_tensors_are_caught(use, monkeypatch):
    monkeypatch.setattr(layer, "constant", lambda *of: True)
    monkeypatch.setattr(certify, "at_most_one_of_rows", lambda *of: True)
    assert moved(Shared(USES[use]).double(), batched_sum) > 1
