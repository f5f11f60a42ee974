"""The sums with the weight of a split into large and small steps are upper sums."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest

from tests.speed import fast_then_slow
from userdp.accounting.contour import pair_of
from userdp.accounting.contour.coarse_grid import (
    log_upper_sum,
    make_side,
    split_at,
)
from userdp.accounting.contour.few_large_steps import choices
from userdp.accounting.item_count_laws import Binomial

# Steps in which chi turns fast beside the grid of a step: found where a user takes part with 1e-3.
CASES = [(1e-3, 0.5, 1.0), (1e-3, 0.6, 2.0), (1e-2, 1.0, 3.0)]


def truths(law, split, end, order):
    """log of E_P[weight e^{(1 + a) l}] up to ``end`` for 1 - chi and for chi, to 20 digits."""
    probability, shift = law

    def small(x, sign=1):
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


def worst_miss(case, *, as_if_flat, finer):
    """How far a weighted sum of one step is below the integral it bounds, at most; in logs."""
    probability, sigma, epsilon = case
    pair = pair_of(Binomial(trials=1, probability=probability), noise_multiplier=sigma, steps=1)
    coarse = make_side(pair, remove=True, mass_budget=1e-20)
    choice = next(iter(choices(coarse, epsilon, math.log(1e-7))))
    side, split = choice.side if finer else coarse, choice.split
    if not finer:
        split = split_at(side, split.place, split.rate, side.x.size)
    worst = -math.inf
    for order in (0.5, 3.0, 6.0):
        found = [
            log_upper_sum(side, split.domain, np.array([1.0 + order]), weight)[0]
            for weight in (
                replace(weight, rate=0.0) if as_if_flat else weight
                for weight in (split.not_chi, split.chi)
            )
        ]
        truth = truths((probability, 1 / sigma), split, float(side.x[split.domain][-1]), order)
        worst = max(worst, *(true - bound for true, bound in zip(truth, found, strict=True)))
    return worst


@pytest.mark.parametrize("case", fast_then_slow(map(pytest.param, CASES)))
def test_a_weighted_sum_is_an_upper_one_however_fast_its_weight_turns(case):
    assert worst_miss(case, as_if_flat=False, finer=True) <= 0.0


def test_twin_a_sum_on_the_grid_of_the_step_with_the_slack_of_no_weight_is_caught():
    assert worst_miss(CASES[0], as_if_flat=True, finer=False) > 1e-7
