"""False alarms of the step checks at every size, by enumeration and by many right runs."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from tests.speed import fast_then_slow
from userdp.auditing.step_checks import (
    LEVEL,
    cosine_p_value,
    ks_p_value,
    participation_checks,
)


def normal_p_value(seen, steps, near):
    """Broken twin: the normal law of how many are near their mean, right for many steps alone."""
    return 2 * stats.norm.sf(abs(seen - steps * near) / math.sqrt(steps * near * (1 - near)))


CASES = [(5, "1/10", 4), (3, "5/6", 4), (5, "99/100", 2), (7, "1/3", 4), (9, "1/2", 4)]


@pytest.mark.pitfall(number=41)
@pytest.mark.parametrize(("population", "q", "steps"), fast_then_slow(CASES, fast=3))
def test_draws_are_judged_by_the_tails_of_enumeration_and_a_broken_twin_is_caught(
    population, q, steps
):
    """The twin flags 0.2% of right runs of two steps, at 0.01%."""
    q = Fraction(q)
    chance = [math.comb(population, n) * q**n * (1 - q) ** (population - n)
              for n in range(population + 1)]  # fmt: skip
    is_near = [abs(n - population * q) <= 1 for n in range(population + 1)]
    near, totals = [Fraction(0)] * (steps + 1), [Fraction(0)] * (population * steps + 1)
    for numbers in itertools.product(range(population + 1), repeat=steps):
        weight = math.prod(chance[n] for n in numbers)
        near[sum(is_near[n] for n in numbers)] += weight
        totals[sum(numbers)] += weight
    for numbers in itertools.combinations_with_replacement(range(population + 1), steps):
        cohorts = [np.arange(n) for n in numbers]
        checks = participation_checks(cohorts, population=population, probability=float(q))
        seen = (totals, sum(numbers)), (near, sum(is_near[n] for n in numbers))
        for check, (law, at) in zip(checks, seen, strict=False):
            exact = 2 * float(min(sum(law[: at + 1]), sum(law[at:])))
            assert check.p_value == pytest.approx(min(1.0, exact), rel=1e-9)
            assert check.flagged == (check.p_value < LEVEL)
    one = float(sum(c for c, yes in zip(chance, is_near, strict=True) if yes))
    twin = sum(w for at, w in enumerate(near) if normal_p_value(at, steps, one) < LEVEL)
    assert twin > 1e-3 or population != 5 or q < 0.5


@pytest.mark.parametrize("count", [1, 2, 5, 64])
def test_the_distance_of_few_gaussians_is_odd_as_seldom_as_its_p_value_says(count):
    draw = np.random.default_rng(3)
    law = np.sort(stats.norm.cdf(draw.standard_normal((40_000, count))), axis=1)
    below = np.arange(count) / count
    distances = np.maximum(law - below, below + 1 / count - law).max(axis=1)
    p = np.array([ks_p_value(distance, count) for distance in distances])
    for level in (0.001, 0.01, 0.1):
        assert (p <= level).mean() <= level + 4 * math.sqrt(level / 40_000)


@pytest.mark.parametrize(("dimension", "rows"), [(1, 4), (2, 2), (3, 6), (8, 2), (64, 20)])
def test_the_greatest_cosine_is_odd_as_seldom_as_its_p_value_says(dimension, rows):
    vectors = np.random.default_rng(4).standard_normal((8_000, rows, dimension))
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    pairs = np.triu_indices(rows, 1)
    most = np.abs(vectors @ vectors.transpose(0, 2, 1))[:, pairs[0], pairs[1]].max(axis=1)
    p = np.array([cosine_p_value(one, dimension=dimension, pairs=len(pairs[0])) for one in most])
    for level in (0.001, 0.01, 0.1):
        assert (p <= level).mean() <= level + 4 * math.sqrt(level / len(p))
    if (dimension, rows) == (8, 2):  # one pair: no union, so the law itself
        assert (p <= 0.1).mean() > 0.08
