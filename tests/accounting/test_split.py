"""What is bounded of a split into large and small steps, where certain steps stand beside them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import erfc
from scipy.stats import norm

from userdp.accounting.contour import large, phase_of
from userdp.accounting.contour.chernoff import log_upper_sum
from userdp.accounting.contour.line import make_split_line
from userdp.accounting.contour.side import make_side
from userdp.accounting.contour.split import choices, log_large, log_small
from userdp.accounting.laws import Binomial

RARE = phase_of(Binomial(trials=1, probability=1e-5), noise_multiplier=0.5, count=100)
CERTAIN = phase_of(Binomial(trials=1, probability=1.0), noise_multiplier=4.0, count=3)


@pytest.mark.parametrize("bound", [log_small, log_large])
def test_certain_steps_add_their_own_exponent_to_the_bounds_of_a_split(bound) -> None:
    """E e^{a l} of a Gaussian mechanism is e^{mu^2 a (a + 1) / 2}, mu^2 = sum T shift^2."""
    side = make_side((RARE, CERTAIN), remove=True, mass_budget=1e-20)
    assert side.mu2 == pytest.approx(3 / 16)
    splits = next(iter(choices(side, 1.0, np.log(1e-7)))).splits
    orders = np.array([0.5, 3.0, 20.0])
    with_them = bound(side, splits, orders)
    without = bound(replace(side, mu2=0.0), splits, orders)
    assert with_them - without == pytest.approx(0.5 * side.mu2 * orders * (orders + 1), rel=1e-6)


def test_certain_steps_damp_the_tail_of_the_large_part_by_their_own_exponent() -> None:
    """|E e^{(c + iu) l}| of a Gaussian mechanism falls by e^{-mu^2 u^2 / 2}."""
    side = make_side((RARE,), remove=True, mass_budget=1e-20)
    splits = next(iter(choices(side, 1.0, math.log(1e-7)))).splits
    lines = tuple(
        make_split_line(step, split, 3.0) for step, split in zip(side.steps, splits, strict=True)
    )
    for u in (0.5, 3.0, 20.0):
        damped = large._log_tail(lines, 3 / 16, u) - large._log_tail(lines, 0.0, u)
        assert damped == pytest.approx(-0.5 * 3 / 16 * u**2)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-7), (3.0, 1e-4)])
def test_the_large_part_on_the_real_axis_is_what_its_bound_says(
    epsilon: float, delta: float
) -> None:
    """M^T - M_0^T without cancellation: its bound is attained where a single step is large."""
    side = make_side((RARE,), remove=True, mass_budget=1e-20)
    choice = next(iter(choices(side, epsilon, math.log(delta))))
    rest = choice.rest or large.small_nodes(side, choice.splits, epsilon, math.log(delta))
    assert rest is not None
    nodes = large.large_nodes(side, choice, epsilon, math.log(delta), rest)
    assert nodes is not None
    (bound,) = log_large(side, choice.splits, np.array([nodes.c]))
    assert math.log(abs(nodes.value[0])) + nodes.log_m == pytest.approx(bound, abs=0.01)


def test_the_small_part_is_bounded_by_little_more_than_its_own_moment() -> None:
    """M_0(a) = E_P[(1 - chi) e^{(1 + a) l}], by a plain sum over a finer grid."""
    (step,) = make_side((RARE,), remove=True, mass_budget=1e-20).steps
    side = make_side((RARE,), remove=True, mass_budget=1e-20)
    (split,) = next(iter(choices(side, 1.0, math.log(1e-7)))).splits
    orders = np.array([0.5, 3.0, 6.0])
    x = np.arange(-12.0, step.x[split.domain][-1], 1e-3)
    loss = np.log1p(1e-5 * np.expm1(2.0 * x - 2.0))  # shift 1 / 0.5
    weight = 0.5 * erfc(split.rate * (x - split.place)) * norm.pdf(x) * 1e-3
    truth = [100 * math.log(float(weight @ np.exp((1 + a) * loss))) for a in orders]
    found = log_small(side, (split,), orders)
    assert (found >= np.array(truth) - 1e-12).all()
    assert found == pytest.approx(truth, abs=3e-4)


def test_a_sum_on_a_grid_too_coarse_for_a_proof_bounds_nothing() -> None:
    """With a weight its parts are bounded otherwise, and the sum itself is the bound."""
    (step,) = make_side((RARE,), remove=True, mass_budget=1e-20).steps
    orders = np.array([1.5, 3.0])
    assert np.isfinite(log_upper_sum(step, step.inner, orders)).all()
    coarse = replace(step, h=100.0)
    assert np.isposinf(log_upper_sum(coarse, step.inner, orders)).all()
    weight = np.zeros(step.x[step.inner].size)
    assert np.isfinite(log_upper_sum(coarse, step.inner, orders, weight)).all()
