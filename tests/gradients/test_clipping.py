"""Clip factors hold in floating point."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from userdp.core.errors import UseError
from userdp.gradients.clip_factors import (
    CLIP_MARGIN,
    LEAST_FACTOR,
    MOST_FACTOR,
    ClipRule,
    clip_factors,
    multiplicable,
    require_clip_norm,
    squared_norm,
)
from userdp.noise.clip_forms import OWN_FORMS, LayerSplit

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


@pytest.mark.parametrize("norm", [0.0, 1e-160, 1e-30, 0.5, 0.99999, 1.0, 1.00001, 7.0, 1e30, 1e150])
@pytest.mark.parametrize("bound", [1e-30, 1e-3, 1.0, 1e30])
def test_invariant_3_factor_times_norm_never_passes_the_margin_below_the_clip_norm(norm, bound):
    squares = torch.tensor([norm], dtype=torch.float64).square()
    factor = float(clip_factors(squares, l2_clip_norm=bound))
    assert 0 < factor <= 1
    assert factor * norm <= bound * (1 - CLIP_MARGIN) * (1 + 1e-15)
    if norm <= bound * (1 - CLIP_MARGIN):
        assert factor == 1


@pytest.mark.parametrize("stability", [None, 0.01])
@pytest.mark.pitfall(number=16)
def test_invariant_6_the_factor_of_a_norm_that_is_not_finite_is_zero(stability):
    """Not NaN: a NaN would stay one through any later product with zero."""
    squares = torch.tensor([NAN, INF, 0.04, 4.0], dtype=torch.float64)
    factors = clip_factors(squares, l2_clip_norm=1.0, stability=stability)
    assert factors[:2].tolist() == [0.0, 0.0]
    assert (factors[2:] > 0).all()


@pytest.mark.parametrize("value", [NAN, INF])
def test_invariant_6_twin_a_clip_by_min_or_by_multiplying_with_zero_is_caught(value: float) -> None:
    gradient = torch.tensor([value, 1.0])
    for factor in (min(1.0, 1.0 / float(gradient.norm())), 0.0):
        assert (gradient * factor).isnan().any()


@pytest.mark.parametrize("bound", [NAN, INF, -INF, 0.0, -1.0, 1e-9, 1e31])
def test_a_clip_norm_out_of_range_is_refused(bound: float) -> None:
    with pytest.raises(UseError, match="l2_clip_norm"):
        require_clip_norm("l2_clip_norm", bound)


def test_a_unit_is_multiplied_in_float32_only_if_every_factor_of_it_may_be() -> None:
    small, least = LEAST_FACTOR / 2, LEAST_FACTOR
    factors = torch.tensor([[1.0, 1.0, small, small], [1.0, least, 1.0, small]]).double()
    assert multiplicable(factors).tolist() == [True, True, False, False]
    assert multiplicable(factors.flip(0)).tolist() == [True, True, False, False]
    assert multiplicable([torch.tensor([MOST_FACTOR, 2 * MOST_FACTOR])]).tolist() == [True, False]


@pytest.mark.parametrize("split", LayerSplit)
def test_invariant_6_the_factors_of_such_a_unit_are_zero_in_every_layer(split: LayerSplit) -> None:
    """Engines leave it out by themselves too; whoever asks for factors alone must see it here."""
    squares = {
        "head.weight": torch.tensor([4.0, math.nan, 4.0], dtype=torch.float64),
        "norm.weight": torch.tensor([9.0, 9.0, math.inf], dtype=torch.float64),
    }
    sizes = {"head.weight": 6, "norm.weight": 3}
    for factor in ClipRule(layer_split=split).factors(squares, sizes, l2_clip_norm=1.0).values():
        assert factor[0] > 0
        assert factor[1:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("wrong", [None, math.nan, -1.0, math.inf])
def test_invariant_6_a_unit_of_which_a_form_says_no_number_is_left_out(wrong, monkeypatch):
    """An error of the form too: that it came would tell what somebody's gradient is."""

    def form(norm: float, clip_norm: float) -> float | None:
        if norm > 2:
            raise ArithmeticError("too large for this form")
        return wrong if norm > 1 else 0.5

    monkeypatch.setitem(OWN_FORMS, "moody", form)
    squares = torch.tensor([0.25, 2.25, 9.0, math.nan], dtype=torch.float64)
    factors = ClipRule(form="moody").factors({"w": squares}, {"w": 1}, l2_clip_norm=1.0)["w"]
    assert factors.tolist() == [0.5, 0.0, 0.0, 0.0]
