"""What is added of a unit, and of those behind it, is no longer than norms and margin say.

The rows here are made to be worst: a large position, many that are half of what is still kept
beside it, and one that takes the large one away. Scaled by a little, each is rounded the other way.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from userdp.gradients.clipping import squared_norm
from userdp.gradients.engines import rounding
from userdp.gradients.engines.norm_pass import NormTape
from userdp.gradients.engines.rounding import RUN, additions, longest_run, taken_larger
from userdp.gradients.engines.rules import linear
from userdp.gradients.engines.rules.linear import Ghost
from userdp.gradients.engines.tape import Workspace
from userdp.gradients.engines.uses import Dense, Layout

U = 2.0**-24
KEPT = 0.49 * 2 * U
"""Beside 1 it is lost; 1.025 times it, beside 1.025, is rounded up to twice itself."""

SCALED = 1.025


def drifting(positions: int, cancelled: float) -> Tensor:
    """One number for each position, whose sum is what is left of 1 - (1 - 2 / cancelled)."""
    numbers = torch.full((positions,), KEPT)
    numbers[0], numbers[-1] = 1, -(1 - 2 / cancelled)
    return numbers


def sides(numbers: Tensor, width: int = 64) -> tuple[Tensor, Tensor]:
    """A layer's rows that multiply to these numbers, which no side shows; powers of 2 apart."""
    powers = torch.where(numbers.abs() < 1e-3, 2.0**-11, 1.0)
    left = powers[:, None].expand(-1, width).contiguous()
    return left, (numbers / powers)[:, None].expand(-1, width).contiguous()


def layout_of(units: int) -> Layout:
    return Layout(bounds=tuple(range(units + 1)), unit_of_row=torch.arange(units))


def tensor(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def by_runs_side_by_side(left_NP: Tensor, right_NQ: Tensor) -> Tensor:
    """The product as an accelerator makes it."""
    into = torch.full((1, left_NP.shape[1], right_NQ.shape[1]), torch.nan)
    linear.form_runs(into, left_NP[None], right_NQ[None])
    return into[0]


PRODUCTS = [linear.product, by_runs_side_by_side]


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("cancelled", [8.0, 29.0, 64.0, 1e3, 1e5, 1e7])
@pytest.mark.parametrize("positions", [16, 384, RUN, RUN + 1, 4096])
def test_invariant_3_a_scaled_sum_is_no_longer_than_the_norm_of_the_first(
    positions: int, cancelled: float, product: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Broken twin: the norm of the first sum itself."""
    left, right = sides(drifting(positions, cancelled))
    formed = linear.form_gradients(left[None], right[None], layout_of(1))
    norm = float(formed.double().norm())
    lengths = float((left.double().norm(dim=1) * right.double().norm(dim=1)).sum())
    taken = float(taken_larger(tensor(norm**2), tensor(lengths), added=additions(positions)).sqrt())
    added = float(product(left * SCALED, right).double().norm()) / SCALED
    assert added <= taken * (1 + 3.1e-4)
    if cancelled >= 1e3 and positions >= 384:
        assert added > norm * (1 + 1e-3)  # broken twin


@pytest.mark.parametrize("cancelled", [8.0, 64.0, 1e3, 1e5])
@pytest.mark.parametrize("positions", [512, 4096])
def test_invariant_3_a_scaled_sum_of_one_position_after_another_neither(
    positions: int, cancelled: float
) -> None:
    """As of a token that is looked up many times."""
    numbers = drifting(positions, cancelled)
    sums = [
        one_by_one(numbers[:, None] * factor, torch.ones(positions, 1)) for factor in (1, SCALED)
    ]
    norm, added = (abs(float(total)) for total in sums)
    lengths = float(numbers.double().abs().sum())
    taken = float(taken_larger(tensor(norm**2), tensor(lengths), added=positions).sqrt())
    assert added / SCALED <= taken * (1 + 3.1e-4)
    assert added / SCALED > norm * (1 + 1e-3) or cancelled < 1e3  # broken twin


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
    use = Ghost(left, right, layout_of(units))
    norms = use.squared_norms().sqrt()
    assert bool(norms.isfinite().all())
    clip = float(norms[1])
    factors = torch.ones(units, dtype=torch.float64)
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
    cancelled: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = moved_by_the_first(cancelled)
    assert honest <= 4.9e-4
    monkeypatch.setattr(linear, "at_least", torch.zeros_like)
    twin = moved_by_the_first(cancelled)
    assert cancelled < 62 or twin > 1.5 * honest  # broken twin


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
        formed = linear.form_gradients(left, right, layout_of(2))
        total = linear.product(left.flatten(0, 1), right.flatten(0, 1))
        linear.form_runs(formed.clone(), left, right)
    torch.testing.assert_close(formed.double(), exact, rtol=0, atol=1e-3)
    torch.testing.assert_close(total.double(), exact.sum(0), rtol=0, atol=1e-3)
    assert max(longest) == RUN == 512


@pytest.mark.parametrize("at_once", [1, 20 * 24 * 3, 1 << 26])
@pytest.mark.parametrize("positions", [0, 1, RUN, RUN + 1, 3 * RUN - 4, 3 * RUN + 7])
def test_runs_side_by_side_are_the_gradients_of_all_units(
    positions: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "_AT_ONCE", at_once)
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.randn(5, positions, width, generator=draw) for width in (20, 24))
    into = torch.full((5, 20, 24), torch.nan)
    linear.form_runs(into, left, right)
    exact = left.double().transpose(1, 2) @ right.double()
    torch.testing.assert_close(into.double(), exact, rtol=0, atol=1e-3)


@pytest.mark.parametrize("positions", [1, RUN, RUN + 1, 3 * RUN, 3 * RUN + 7])
def test_the_longest_run_is_never_less_than_any_run(positions: int) -> None:
    lengths = torch.rand(
        2, positions, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    windows = lengths.unfold(1, min(RUN, positions), 1).sum(2)
    found = longest_run(lengths)
    assert bool((found >= windows.amax(1) - 1e-9).all())
    assert bool((found <= lengths.sum(1) + 1e-9).all())


def test_numbers_that_are_not_finite_stay_so() -> None:
    squares = torch.tensor([math.nan, math.inf, 1.0], dtype=torch.float64)
    lengths = torch.tensor([1.0, 1.0, math.inf], dtype=torch.float64)
    found = taken_larger(squares, lengths, added=10)
    assert not bool(found.isfinite().any())
    assert rounding.additions(0) == 2


def opposite(
    a: float, b: float, left_over: float, *, positions: int, columns: int
) -> tuple[Tensor, Tensor]:
    """Constant rows, 64 and so many columns, whose outer products cancel but for ``left_over``."""
    signs = torch.ones(positions)
    signs[positions // 2 :] = left_over - 1
    right = (b * signs)[:, None].expand(-1, columns).contiguous()
    return torch.full((positions, 64), a), right


def truth(left: Tensor, right: Tensor) -> tuple[float, float]:
    """The norm of ``left.T @ right`` for constant rows, and W."""
    entry = abs(float((left[:, 0].double() * right[:, 0].double()).sum()))
    lengths = float((left.double().norm(dim=1) * right.double().norm(dim=1)).sum())
    return entry * math.sqrt(left.shape[1] * right.shape[1]), lengths


@pytest.mark.parametrize("left_over", [1e-1, 3e-2, 1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize("columns", [1, 8, 64])
@pytest.mark.parametrize("positions", [1024, 16384])
def test_invariant_3_what_two_passes_add_is_no_longer_than_the_norm_they_take(
    left_over: float, columns: int, positions: int
) -> None:
    ratio, blind = 0.0, 0.0
    draw = random.Random(2)
    for _ in range(100 if positions == 1024 else 10):
        left, right = opposite(
            1 + draw.random(), 1 + draw.random(), left_over, positions=positions, columns=columns
        )
        true, lengths = truth(left, right)
        norm = math.sqrt(squared_norm([linear.product(left, right)]))
        taken = taken_larger(tensor(true**2), tensor(lengths), added=additions(positions))
        ratio = max(ratio, norm / float(taken.sqrt()))
        blind = max(blind, abs(norm / true - 1))
    assert ratio <= 1 + 3e-4
    if left_over < 1e-3:  # broken twin: of such rows the true norm is not that of what is added
        assert blind > 1e-3


def one_by_one(left: Tensor, right: Tensor) -> Tensor:
    """As a processor may sum a narrow product: one position after another, in float32."""
    return torch.from_numpy(
        np.cumsum(left.numpy()[:, :, None] * right.numpy()[:, None, :], axis=0, dtype=np.float32)[
            -1
        ]
    )


@pytest.mark.parametrize(("columns", "positions"), [(1, 16384), (8, 5000), (15, 1024), (2, 600)])
def test_invariant_3_a_narrow_sum_rounds_no_more_than_a_wide_one(
    columns: int, positions: int
) -> None:
    draw, worst, twin = random.Random(2), 0.0, 0.0
    for _ in range(5):
        left, right = opposite(
            1 + draw.random(), 1 + draw.random(), 3e-2, positions=positions, columns=columns
        )
        true, lengths = truth(left, right)
        worst = max(worst, math.sqrt(squared_norm([linear.product(left, right)])) - true)
        twin = max(twin, math.sqrt(squared_norm([one_by_one(left, right)])) - true)
        assert worst <= 3e-6 * lengths
        torch.testing.assert_close(
            linear.product(left, right).double(), left.double().T @ right.double(),
            rtol=0, atol=3e-6 * lengths,
        )  # fmt: skip
    if positions > 10_000:  # broken twin
        assert twin > 1e-5 * lengths


@pytest.mark.parametrize("make", [nn.LayerNorm, lambda width: nn.Embedding(2, width)])
def test_invariant_3_sums_over_positions_are_no_longer_than_the_norm_they_take(
    make: Callable[[int], nn.Module],
) -> None:
    """What torch adds up by itself: vectors of a layer norm, rows of a table."""
    positions, width, draw = 16384, 64, random.Random(1)
    layer = make(width)
    rows: Any = torch.ones(positions, dtype=torch.int64)
    if isinstance(layer, nn.LayerNorm):
        rows = torch.tensor([1.0, -1.0]).repeat(width // 2).expand(positions, width)
    for left_over in (1e-1, 3e-2, 1e-3):
        layer.zero_grad()
        _, pull = opposite(1.0, 1 + draw.random(), left_over, positions=positions, columns=width)
        layer(rows).backward(pull)
        added = next(iter(layer.parameters())).grad
        assert added is not None
        true = abs(float(pull[:, 0].double().sum())) * math.sqrt(width)
        lengths = float(pull.double().norm(dim=1).sum())
        taken = float(taken_larger(tensor(true**2), tensor(lengths), added=positions).sqrt())
        assert float(added.double().norm()) <= taken * (1 + 3e-4)


@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (8, 1), (64, 64), (64, 8)])
@pytest.mark.parametrize(("rows", "positions"), [(1, 16384), (128, 128)])
def test_invariant_3_the_sum_of_a_kernel_is_no_longer_than_the_norm_that_is_taken(
    channels: int, groups: int, rows: int, positions: int
) -> None:
    layer, draw = nn.Conv1d(channels, channels, 4, groups=groups, bias=False), random.Random(1)
    name = {"weight": next(iter(layer.parameters()))}
    layout = Layout(bounds=(0, rows), unit_of_row=torch.zeros(rows, dtype=torch.int64))
    for left_over in (1e-1, 3e-2, 1e-3):
        x = torch.full((rows, channels, positions + 3), 1 + draw.random())
        _, pull = opposite(1, 1 + draw.random(), left_over, positions=rows * positions, columns=1)
        pulls = pull.view(rows, 1, positions).expand(-1, channels, -1).contiguous()
        layer.zero_grad()
        layer(x).backward(pulls)
        added = layer.weight.grad
        assert added is not None
        layer.zero_grad()
        tape = NormTape(name, layout, Workspace(), shared=frozenset())
        with tape.watching(layer, x, pulls):
            assert not tape.backward((layer(x) * pulls).sum())
        taken = float(tape.squares_by_name()["weight"].sqrt())
        assert float(added.double().norm()) <= taken * (1 + 3e-4)
    # Broken twin: the true norm, where a processor sums one position after another.
    terms = x[:1, :1, :1] * pulls[:, :1]
    blind = float(one_by_one(terms.reshape(-1, 1), torch.ones(rows * positions, 1)))
    assert abs(blind / float(terms.double().sum()) - 1) > 3e-4


def test_the_norm_pass_takes_norms_larger_where_rows_cancel_and_only_there() -> None:
    parameter = nn.Parameter(torch.zeros(16, 1))
    for left_over, larger in ((0.5, False), (1e-6, True)):
        layout = Layout(bounds=(0, 2), unit_of_row=torch.zeros(2, dtype=torch.int64))
        tape = NormTape({"w": parameter}, layout, Workspace(), shared=frozenset())
        left = torch.ones(2, 1, 16)
        right = torch.tensor([1.0, left_over - 1]).view(2, 1, 1)
        tape.keep("w", Ghost(left, right, layout), left, right)
        true = float(Dense((left[:, 0].T @ right[:, 0])[None]).squared_norms())
        assert (float(tape.squared_norms()) > true * (1 + 1e-6)) is larger
