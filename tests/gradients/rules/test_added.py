"""A sum gets each of its numbers once, in however many blocks it is added to."""

from __future__ import annotations

import pytest
import torch

from userdp.gradients.engines import uses
from userdp.gradients.engines.rules import linear
from userdp.gradients.engines.rules.linear import Ghost
from userdp.gradients.engines.uses import Dense, Use

UNITS, P, Q = 3, 10, 7


def kept() -> tuple[Use, Use]:
    """The same units of a matrix, in either form."""
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.randn(UNITS, 4, width, generator=draw) for width in (P, Q))
    return Ghost(left, right), Dense(left.transpose(1, 2) @ right)


def wrong_by(use: Use, dtype: torch.dtype) -> float:
    """The largest error of a sum to which a use was added."""
    factors = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    gradients = kept()[1].dense().gradients.double()
    exact = 1 + (factors[:, None, None] * gradients).sum(0)
    total = torch.ones(P, Q, dtype=dtype)
    use.add_to(total, factors)
    return float((total - exact).abs().max())


@pytest.mark.parametrize("numbers", [1, Q, 2 * Q + 1, 3 * Q, P * Q, 1 << 21])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", [0, 1])
def test_a_sum_is_right_in_blocks_of_any_size(
    numbers: int, dtype: torch.dtype, form: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "_ADDED", numbers)
    monkeypatch.setattr(uses, "_MIXED", numbers)
    assert wrong_by(kept()[form], dtype) < 1e-5
