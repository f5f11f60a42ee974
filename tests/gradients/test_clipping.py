"""Clip factors hold in floating point."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from userdp.core.errors import UseError
from userdp.gradients.clipping import (
    CLIP_MARGIN,
    LEAST_FACTOR,
    MOST_FACTOR,
    clip_factors,
    multiplicable,
    require_clip_norm,
    squared_norm,
)

NAN, INF = float("nan"), float("inf")


@pytest.mark.pitfall(number=13)
def test_invariant_3_the_norm_is_right_where_a_float32_running_sum_under_clips() -> None:
    """``Tensor.norm`` on a CPU adds float32 squares: -6.5e-4 at 1.7e7 elements, measured."""
    vector = torch.randn(1 << 22, generator=torch.Generator().manual_seed(0))
    squares = vector.numpy().astype(np.float64) ** 2
    exact = math.sqrt(math.fsum(squares.tolist()))
    ours = squared_norm([vector])
    assert math.sqrt(ours) == pytest.approx(exact, rel=1e-12)
    factor = float(clip_factors(torch.tensor(ours, dtype=torch.float64), l2_clip_norm=1.0))
    assert factor * exact <= 1
    running = np.cumsum(squares.astype(np.float32), dtype=np.float32)[-1]  # broken twin
    assert exact * (1 - CLIP_MARGIN) / math.sqrt(running) > 1


def test_squares_neither_overflow_nor_vanish_for_any_float32_gradient() -> None:
    huge = torch.full((4,), 3e38)
    tiny = torch.full((4,), 1e-45)
    assert math.sqrt(squared_norm([huge])) == pytest.approx(2 * float(huge[0]), rel=1e-12)
    assert math.sqrt(squared_norm([tiny])) == pytest.approx(2 * float(tiny[0]), rel=1e-12)
    assert torch.isinf(huge.norm())  # broken twin
    assert huge.square().sum() == INF


def test_the_norm_is_over_all_tensors_of_all_shapes_together() -> None:
    parts = [torch.full((2, 3), 2.0), torch.full((), 5.0), torch.zeros(0), torch.full((1,), 3.0)]
    assert squared_norm(parts) == 24 + 25 + 9
    assert squared_norm([]) == 0


@pytest.mark.parametrize("norm", [0.0, 1e-160, 1e-30, 0.5, 0.99999, 1.0, 1.00001, 7.0, 1e30, 1e150])
@pytest.mark.parametrize("bound", [1e-30, 1e-3, 1.0, 1e30])
def test_invariant_3_factor_times_norm_never_passes_the_margin_below_the_clip_norm(norm, bound):
    squares = torch.tensor([norm], dtype=torch.float64).square()
    factor = float(clip_factors(squares, l2_clip_norm=bound))
    assert 0 < factor <= 1
    assert factor * norm <= bound * (1 - CLIP_MARGIN) * (1 + 1e-15)
    if norm <= bound * (1 - CLIP_MARGIN):
        assert factor == 1


def test_a_non_finite_unit_gets_factor_zero_where_min_would_give_one() -> None:
    squares = torch.tensor([NAN, INF, 4.0], dtype=torch.float64)
    assert clip_factors(squares, l2_clip_norm=1.0)[:2].tolist() == [0.0, 0.0]
    assert min(1.0, 1.0 / NAN) == 1.0  # broken twin: why the factor is not written with min


@pytest.mark.parametrize("bound", [NAN, INF, -INF, 0.0, -1.0, 1e-9, 1e31])
def test_a_clip_norm_out_of_range_is_refused(bound: float) -> None:
    with pytest.raises(UseError, match="l2_clip_norm"):
        require_clip_norm("l2_clip_norm", bound)


def test_a_norm_formed_in_bfloat16_lets_a_gradient_pass_that_is_too_long() -> None:
    """The broken twin of `squared_norm`, and how the same measurement sees it."""
    generator = torch.Generator().manual_seed(0)
    excess = []
    for _ in range(50):
        gradient = torch.randn(300, generator=generator)
        half = float(gradient.bfloat16().square().sum())
        excess.append(math.sqrt(squared_norm([gradient]) / half))
        ours = float(
            clip_factors(
                torch.tensor(squared_norm([gradient]), dtype=torch.float64), l2_clip_norm=1.0
            )
        )
        assert squared_norm([gradient.double() * ours]) <= 1
    assert max(excess) > 1 + 100 * CLIP_MARGIN


def test_a_unit_is_multiplied_in_float32_only_if_every_factor_of_it_may_be() -> None:
    small, least = LEAST_FACTOR / 2, LEAST_FACTOR
    factors = torch.tensor([[1.0, 1.0, small, small], [1.0, least, 1.0, small]]).double()
    assert multiplicable(factors).tolist() == [True, True, False, False]
    assert multiplicable(factors.flip(0)).tolist() == [True, True, False, False]
    assert multiplicable([torch.tensor([MOST_FACTOR, 2 * MOST_FACTOR])]).tolist() == [True, False]
