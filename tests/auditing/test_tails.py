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
    spread_p_value,
)


def gamma_p_value(sizes: np.ndarray, trials: int, q: float) -> np.ndarray:
    """Broken twin: a gamma law matched to two moments, right for many steps alone."""
    variance = trials * q * (1 - q)
    fourth = variance * (1 + 3 * (trials - 2) * q * (1 - q))
    seen = np.square(sizes - trials * q).mean(axis=-1) / variance
    shape = sizes.shape[-1] * variance**2 / (fourth - variance**2)
    law = stats.gamma(shape, scale=1 / shape)
    return 2 * np.minimum(law.cdf(seen), law.sf(seen))


def rates_of_all_draws(steps_: int, population: int, q: float) -> tuple[list[float], float]:
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
        twin += weight * float(gamma_p_value(np.array(sizes), population, q) < LEVEL)
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
    """The twin, the law of many steps, flags 3.7% of right runs of two steps, at 0.01%."""
    flagged, twin = rates_of_all_draws(steps_, population, q)
    assert max(flagged) <= LEVEL
    assert twin > 0.03 or (steps_, population) != (2, 20)


def exact_spread(count: int, trials: int, q: Fraction) -> dict[Fraction, Fraction]:
    """The law of Σ (n - trials q)² by enumeration in rational numbers."""
    chance = [math.comb(trials, n) * q**n * (1 - q) ** (trials - n) for n in range(trials + 1)]
    law: dict[Fraction, Fraction] = {}
    for numbers in itertools.product(range(trials + 1), repeat=count):
        spread = sum((n - trials * q) ** 2 for n in numbers)
        law[spread] = law.get(spread, Fraction(0)) + math.prod(chance[n] for n in numbers)
    return law


@pytest.mark.parametrize(
    ("count", "trials", "q"),
    [
        (1, 7, Fraction(1, 3)),
        (2, 9, Fraction(1, 2)),
        (3, 5, Fraction(1, 10)),
        (4, 3, Fraction(5, 6)),
    ],
)
def test_the_p_value_of_a_spread_is_above_the_tails_of_enumeration(count, trials, q):
    exact = exact_spread(count, trials, q)
    for numbers in itertools.combinations_with_replacement(range(trials + 1), count):
        spread = sum((n - trials * q) ** 2 for n in numbers)
        lower = float(sum(p for s, p in exact.items() if s <= spread))
        upper = float(sum(p for s, p in exact.items() if s >= spread))
        found = spread_p_value(np.array(numbers), trials=trials, probability=float(q))
        assert found >= min(1, 2 * min(lower, upper)) * (1 - 1e-9)
        if spread == min(exact):
            assert found == pytest.approx(min(1, 2 * lower), rel=1e-6), "the probability itself"


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
