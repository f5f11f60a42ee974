"""What is bounded of a split into large and small steps, where certain steps stand beside them."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from scipy.special import erfc
from scipy.stats import norm

from userdp.accounting.contour import large, phase_of
from userdp.accounting.contour.chernoff import Weight, log_upper_share, log_upper_sum
from userdp.accounting.contour.line import make_split_line
from userdp.accounting.contour.losses import losses
from userdp.accounting.contour.side import GridTooLarge, Step, make_side, on_finer_grid
from userdp.accounting.contour.split import Split, choices, log_large, log_small, split_at
from userdp.accounting.laws import Binomial

RARE = phase_of(Binomial(trials=1, probability=1e-5), noise_multiplier=0.5, count=100)
CERTAIN = phase_of(Binomial(trials=1, probability=1.0), noise_multiplier=4.0, count=3)


@pytest.mark.parametrize("bound", [log_small, log_large])
def test_certain_steps_add_their_own_exponent_to_the_bounds_of_a_split(bound) -> None:
    """E e^{a l} of a Gaussian mechanism is e^{mu^2 a (a + 1) / 2}, mu^2 = sum T shift^2."""
    side = make_side((RARE, CERTAIN), remove=True, mass_budget=1e-20)
    assert side.mu2 == pytest.approx(3 / 16)
    choice = next(iter(choices(side, 1.0, np.log(1e-7))))
    orders = np.array([0.5, 3.0, 20.0])
    with_them = bound(choice.side, choice.splits, orders)
    without = bound(replace(choice.side, mu2=0.0), choice.splits, orders)
    assert with_them - without == pytest.approx(0.5 * side.mu2 * orders * (orders + 1), rel=1e-6)


def test_certain_steps_damp_the_tail_of_the_large_part_by_their_own_exponent() -> None:
    """|E e^{(c + iu) l}| of a Gaussian mechanism falls by e^{-mu^2 u^2 / 2}."""
    side = make_side((RARE,), remove=True, mass_budget=1e-20)
    choice = next(iter(choices(side, 1.0, math.log(1e-7))))
    lines = tuple(
        make_split_line(step, split, 3.0)
        for step, split in zip(choice.side.steps, choice.splits, strict=True)
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
    rest = choice.rest or large.small_nodes(choice, epsilon, math.log(delta))
    assert rest is not None
    nodes = large.large_nodes(choice, epsilon, math.log(delta), rest)
    assert nodes is not None
    (bound,) = log_large(choice.side, choice.splits, np.array([nodes.c]))
    assert math.log(abs(nodes.value[0])) + nodes.log_m == pytest.approx(bound, abs=0.01)


def test_the_small_part_is_bounded_by_little_more_than_its_own_moment() -> None:
    """M_0(a) = E_P[(1 - chi) e^{(1 + a) l}], by a plain sum over a finer grid."""
    coarse = make_side((RARE,), remove=True, mass_budget=1e-20)
    choice = next(iter(choices(coarse, 1.0, math.log(1e-7))))
    side, (step,), (split,) = choice.side, choice.side.steps, choice.splits
    orders = np.array([0.5, 3.0, 6.0])
    x = np.arange(-12.0, step.x[split.domain][-1], 1e-3)
    loss = np.log1p(1e-5 * np.expm1(2.0 * x - 2.0))  # shift 1 / 0.5
    weight = 0.5 * erfc(split.rate * (x - split.place)) * norm.pdf(x) * 1e-3
    truth = [100 * math.log(float(weight @ np.exp((1 + a) * loss))) for a in orders]
    found = log_small(side, (split,), orders)
    allowed = 1e-6 * 100  # a step
    assert found - np.array(truth) == pytest.approx(allowed, abs=1e-7, rel=0)


def test_a_sum_on_a_grid_too_coarse_for_a_proof_bounds_nothing() -> None:
    (step,) = make_side((RARE,), remove=True, mass_budget=1e-20).steps
    orders = np.array([1.5, 3.0])
    assert np.isfinite(log_upper_sum(step, step.inner, orders)).all()
    coarse = replace(step, h=100.0)
    assert np.isposinf(log_upper_sum(coarse, step.inner, orders)).all()
    steep = Weight(np.zeros(step.x[step.inner].size), rate=30.0)
    assert np.isposinf(log_upper_sum(step, step.inner, orders, steep)).all()
    assert not log_upper_share(step, step.inner, orders, steep).any()  # of a whole, at most all


def coarser(step: Step, parts: int) -> Step:
    """The same step on every ``parts``-th point; its bound of l'' is that of the points between."""
    bend = float(step.bend.max())
    return replace(
        step,
        x=step.x[::parts],
        ell=step.ell[::parts],
        bend=np.full(step.x[::parts].size, bend),
        h=step.h * parts,
        inner=slice(0, step.x[::parts].size),
    )


@pytest.mark.parametrize("turn", [1.1, 1.3, 1.5])
def test_what_a_rule_misses_of_a_weight_that_turns_between_its_points_is_allowed_for(turn) -> None:
    """Wherever between two points it turns. Twin: with the slack of no weight, it is not.

    The rule misses about e^{-(pi/turn)^2} of the integral, now too much and now too little.
    """
    (step,) = make_side((RARE,), remove=True, mass_budget=1e-20).steps
    rate, order = turn / step.h, np.array([2.0])
    misses, without = [], []
    for place in step.x[31] + step.h * np.linspace(0.0, 1.0, 8):
        split = split_at(step, float(place), rate, step.x.size)
        x = np.arange(step.x[0], step.x[-1], step.h / 64)
        loss = np.log1p(1e-5 * np.expm1(2.0 * x - 2.0))
        weight = 0.5 * erfc(rate * (x - place)) * norm.pdf(x) * step.h / 64
        truth = math.log(float(weight @ np.exp(2 * loss)))
        for slope, into in ((rate, misses), (0.0, without)):
            bound = log_upper_sum(step, split.domain, order, Weight(split.log_not_chi, slope))
            into.append(truth - float(bound[0]))
    assert max(misses) <= 0.0
    assert max(without) > 0.0


@pytest.mark.parametrize("order", [0.5, 2.0, 6.0])
def test_the_slack_of_an_add_sum_covers_the_growth_of_its_integrand_off_the_axis(order) -> None:
    r"""2 G / (e^{2 pi Y/h} - 1), with G = int |f(x + iY)| / int f by the complex loss itself."""
    phase = phase_of(Binomial(trials=3, probability=0.3), noise_multiplier=0.5, count=1)
    (fine,) = make_side((phase,), remove=False, mass_budget=1e-20).steps
    found = []
    for parts in (1, 2, 3):
        step = coarser(fine, parts)
        domain, b = step.inner, np.array([-order])
        height = min(2 * math.pi / step.h, math.sqrt(1.7 / float(step.bend.max())))
        heights = height * np.array([1.0, 0.6, 0.35])
        loss = losses(step.law, step.x, heights)[0]
        shifted = b[0] * loss.real - 0.5 * (step.x**2 - heights[:, None] ** 2)
        axis = b[0] * step.ell - 0.5 * step.x**2
        growth = np.exp(shifted).sum(axis=1) / np.exp(axis).sum()
        missed = 2 * growth / np.expm1(2 * math.pi * heights / step.h)
        least = float(missed.min())
        slack = log_upper_sum(step, domain, b) - plain_sum(step, b)
        found.append((least, float(slack[0])))
    assert all(slack >= -math.log1p(-least) for least, slack in found if least < 1)
    assert any(least > 1e-5 for least, _ in found)  # else nothing was asked


def plain_sum(step: Step, b: np.ndarray) -> np.ndarray:
    """log of the sum with both ends in excess, as docs eq. 8 has it, without its allowance."""
    f = np.exp(b[:, None] * step.ell - 0.5 * step.x**2) / math.sqrt(2 * math.pi)
    return np.log(step.h * (f.sum(axis=1) + f[:, 0] + f[:, -1]))


def test_a_finer_grid_has_the_old_points_and_keeps_as_much() -> None:
    (step,) = make_side((RARE,), remove=True, mass_budget=1e-20).steps
    fine = on_finer_grid(step, step.h / 2.5)
    assert fine.h == pytest.approx(step.h / 3)
    assert fine.x[::3] == pytest.approx(step.x)
    assert fine.ell[::3] == pytest.approx(step.ell, rel=1e-9, abs=1e-12)
    kept = [(one.x[one.inner][0], one.x[one.inner][-1]) for one in (step, fine)]
    assert kept[1] == pytest.approx(kept[0])
    assert on_finer_grid(step, step.h) is step
    with pytest.raises(GridTooLarge):
        on_finer_grid(step, 1e-6)


# Steps in which chi turns fast beside the grid of a step: found where a user takes part with 1e-3.
FAST = [(1e-3, 0.5, 1.0), (1e-3, 0.6, 2.0), (1e-5, 0.5, 4.0), (1e-6, 0.4, 8.0), (1e-2, 1.0, 3.0)]


def truths(law: tuple[float, float], split: Split, end: float, order: float) -> tuple[float, float]:
    """log of E_P[weight e^{(1 + a) l}] up to ``end`` for 1 - chi and for chi, to 20 digits."""
    probability, shift = law

    def small(x: mp.mpf, sign: int = 1) -> mp.mpf:
        loss = mp.log1p(probability * mp.expm1(shift * x - shift**2 / 2))
        weight = mp.erfc(sign * split.rate * (x - split.place)) / 2
        return mp.npdf(x) * mp.exp((1 + order) * loss) * weight

    turn = [split.place + t / split.rate for t in (-4, -2, -1, 0, 1, 2, 4)]
    points = sorted({-12.0, -4.0, 0.0, 2.0, *turn, end})
    points = [point for point in points if point <= end]
    with mp.workdps(30):
        return (
            float(mp.log(mp.quad(small, points))),
            float(mp.log(mp.quad(lambda x: small(x, -1), points))),
        )


def worst_miss(case: tuple[float, float, float], *, as_if_flat: bool, finer: bool) -> float:
    """How far a weighted sum of one step is below the integral it bounds, at most; in logs."""
    probability, sigma, epsilon = case
    law = Binomial(trials=1, probability=probability)
    coarse = make_side(
        (phase_of(law, noise_multiplier=sigma, count=1),), remove=True, mass_budget=1e-20
    )
    choice = next(iter(choices(coarse, epsilon, math.log(1e-7))))
    (step,), (split,) = (choice.side if finer else coarse).steps, choice.splits
    if not finer:
        split = split_at(step, split.place, split.rate, step.x.size)
    worst = -math.inf
    for order in (0.5, 3.0, 6.0):
        found = [
            log_upper_sum(step, split.domain, np.array([1.0 + order]), weight)[0]
            for weight in (
                replace(weight, rate=0.0) if as_if_flat else weight
                for weight in (split.not_chi(), split.chi)
            )
        ]
        end = float(step.x[split.domain][-1])
        truth = truths((probability, 1 / sigma), split, end, order)
        worst = max(worst, *(true - bound for true, bound in zip(truth, found, strict=True)))
    return worst


@pytest.mark.parametrize("case", FAST)
def test_a_weighted_sum_is_an_upper_one_however_fast_its_weight_turns(
    case: tuple[float, float, float],
) -> None:
    assert worst_miss(case, as_if_flat=False, finer=True) <= 0.0


def test_twin_a_sum_on_the_grid_of_the_step_with_the_slack_of_no_weight_is_caught() -> None:
    assert max(worst_miss(case, as_if_flat=True, finer=False) for case in FAST) > 1e-7
