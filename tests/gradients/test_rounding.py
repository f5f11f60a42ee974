"""What is added of a unit, and of those behind it, is no longer than norms and margin say.

The rows here are made to be worst: a large position, many that are half of what is still kept
beside it, and one that takes the large one away. Scaled by a little, each is rounded the other way.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from userdp.gradients.engines.rounding import RUN
from userdp.gradients.engines.rules import linear
from userdp.gradients.engines.rules.linear import Ghost

U = 2.0**-24
"""Beside 1 it is lost; 1.025 times it, beside 1.025, is rounded up to twice itself."""


def tensor(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def moved_by_the_first(cancelled: float) -> float:
    """By how much, in clip norms, one unit moves what 23 others behind it add.

    Their partial sums are near a power of 2, which the first unit lifts them over.
    """
    units, positions, width = 24, 16, 63
    above, tiny = 1 + 2.0**-20, 0.55 * U
    rest = 2 * width**0.5 / cancelled  # a column of its own, in which nothing cancels
    left, right = torch.zeros(units, positions, width + 1), torch.zeros(units, positions, 64)
    left[1:, 0, :width], left[1:, 0, width], right[1:, 0] = 1, rest, -above
    left[1:, 1:-1, :width], right[1:, 1:-1] = 2.0**-12, tiny * 2.0**12
    left[1:, -1, :width], right[1:, -1] = 1, above
    left[0, 0, :width], right[0, 0] = 1, above * rest / width**0.5
    use = Ghost(left, right)
    norms = use.squared_norms().sqrt()
    assert bool(norms.isfinite().all())
    clip, factors = float(norms[1]), torch.ones(units, dtype=torch.float64)
    factors[0] = min(1.0, clip / float(norms[0]))
    without = factors.clone()
    without[0] = 0
    totals = []
    for each in (factors, without):
        totals.append(torch.zeros(width + 1, 64, dtype=torch.float64))
        use.add_to(totals[-1], each)
    own = float(factors[0]) * left[0].double().T @ right[0].double()
    return float((totals[0] - totals[1] - own).norm()) / clip


@pytest.mark.parametrize("cancelled", [20.0, 31.0, 45.0, 62.0])
def test_invariant_3_what_others_add_is_moved_by_no_more_than_their_part_of_the_margin(
    cancelled, monkeypatch
):
    honest = moved_by_the_first(cancelled)
    assert honest <= 4.9e-4
    monkeypatch.setattr(linear, "at_least", torch.zeros_like)
    assert cancelled < 62 or moved_by_the_first(cancelled) > 1.5 * honest  # broken twin


def test_invariant_3_products_are_made_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a library adds up in one go: it is never given more."""
    longest: list[int] = []

    class Watched(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if "mm" in func.__name__ or "matmul" in func.__name__:
                longest.append(args[-1].shape[-2])
            return func(*args, **(kwargs or {}))

    draw = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 1500, 20, generator=draw), torch.randn(2, 1500, 24, generator=draw)
    exact = left.double().transpose(1, 2) @ right.double()
    with Watched():
        formed = linear.form_gradients(left, right)
        total = linear.product(left.flatten(0, 1), right.flatten(0, 1))
    torch.testing.assert_close(formed.double(), exact, rtol=0, atol=1e-3)
    torch.testing.assert_close(total.double(), exact.sum(0), rtol=0, atol=1e-3)
    assert max(longest) == RUN == 512
