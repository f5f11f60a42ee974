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


def normal_p_value(sizes, trials, q):
    """Broken twin: the normal law of how many sizes are within one of their mean."""
    chance = stats.binom.pmf(np.arange(trials + 1), trials, q)
    near = float(chance[np.abs(np.arange(trials + 1) - trials * q) <= 1].sum())
    seen = (np.abs(sizes - trials * q) <= 1).sum()
    scale = math.sqrt(len(sizes) * near * (1 - near)) or math.inf
    return 2 * stats.norm.sf(abs(seen - len(sizes) * near) / scale)


def rates_of_all_draws(steps_, population, q):
    """How often right runs are flagged, over every possible run: by check; and by the twin."""
    flagged, twin = [0.0, 0.0, 0.0], 0.0
    chance = stats.binom.pmf(np.arange(population + 1), population, q)
    for sizes in itertools.product(range(population + 1), repeat=steps_):
        weight = math.prod(chance[n] for n in sizes)
        checks = participation_checks(
            [np.arange(n) for n in sizes], population=population, probability=q
        )
        for place in (0, 1):  # neither looks at who was drawn
            flagged[place] += weight * checks[place].flagged
        twin += weight * float(normal_p_value(np.array(sizes), population, q) < LEVEL)
    chance = stats.binom.pmf(np.arange(steps_ + 1), steps_, q)
    units = min(population, 4)
    for counts in itertools.product(range(steps_ + 1), repeat=units):
        cohorts = [np.flatnonzero(np.array(counts) > t) for t in range(steps_)]
        checks = participation_checks(cohorts, population=units, probability=q)
        flagged[2] += math.prod(chance[n] for n in counts) * checks[2].flagged
    return flagged, twin


@pytest.mark.pitfall(number=41)
@pytest.mark.parametrize(
    ("steps_", "population", "q"),
    fast_then_slow(
        [(1, 3, 0.5), (2, 5, 0.99), (2, 5, 0.01), (1, 200, 0.1), (2, 20, 0.3), (3, 4, 1e-3)], fast=2
    ),
)
def test_few_steps_are_flagged_as_seldom_as_claimed_and_a_broken_twin_is_caught(
    steps_, population, q
):
    """The twin, the law of many steps, flags 0.2% of right runs of two steps, at 0.01%."""
    flagged, twin = rates_of_all_draws(steps_, population, q)
    assert max(flagged) <= LEVEL
    assert twin > 1e-3 or (steps_, population, q) != (2, 5, 0.99)


@pytest.mark.parametrize(
    ("trials", "q"),
    [(7, Fraction(1, 3)), (9, Fraction(1, 2)), (5, Fraction(1, 10)), (3, Fraction(5, 6))],
)
def test_near_the_mean_is_judged_by_the_tails_of_enumeration(trials, q):
    """The law of how many of four steps draw a number within one of its mean, in fractions."""
    chance = [math.comb(trials, n) * q**n * (1 - q) ** (trials - n) for n in range(trials + 1)]
    near = [abs(n - trials * q) <= 1 for n in range(trials + 1)]
    law = [Fraction(0)] * 5
    for numbers in itertools.product(range(trials + 1), repeat=4):
        law[sum(near[n] for n in numbers)] += math.prod(chance[n] for n in numbers)
    for numbers in itertools.combinations_with_replacement(range(trials + 1), 4):
        cohorts = [np.arange(n) for n in numbers]
        checks = participation_checks(cohorts, population=trials, probability=float(q))
        count = sum(near[n] for n in numbers)
        exact = 2 * float(min(sum(law[: count + 1]), sum(law[count:])))
        assert checks[1].p_value == pytest.approx(min(1.0, exact), rel=1e-9)


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
    draw = np.random.default_rng(4)
    vectors = draw.standard_normal((8_000, rows, dimension))
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    pairs = np.triu_indices(rows, 1)
    most = np.abs(vectors @ vectors.transpose(0, 2, 1))[:, pairs[0], pairs[1]].max(axis=1)
    p = np.array([cosine_p_value(one, dimension=dimension, pairs=len(pairs[0])) for one in most])
    for level in (0.001, 0.01, 0.1):
        assert (p <= level).mean() <= level + 4 * math.sqrt(level / len(p))
    if (dimension, rows) == (8, 2):  # one pair: no union, so the law itself
        assert (p <= 0.1).mean() > 0.08
