"""Asi & Liu's filter: the formulas against other ways to them, and what its page claims of it.

`docs/results/asi-liu.md` holds the proof; the filter below is written from Algorithm 3, and only
for the tests.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, optimize, stats

from papers import asi_liu
from tests.speed import fast_then_slow

Points = NDArray[np.float64]


def distances(points: Points) -> Points:
    return np.linalg.norm(points[:, None] - points[None], axis=2)


def score(points: Points, tau: float = 1.0) -> float:
    """Algorithm 3, Equation 1: ordered pairs, i = i' among them."""
    return float((distances(points) <= tau).sum()) / len(points)


def inclusion(points: Points, tau: float = 1.0) -> Points:
    """p_{t,i} of Algorithm 3, lines 11 and 12."""
    n = len(points)
    return np.clip(((distances(points) <= 2 * tau).sum(axis=1) - n / 2) / (n / 6), 0, 1)


def test_the_filter_is_less_noisy_only_below_a_tenth_of_the_clip_norm() -> None:
    """The paper's finding at ε = 3, with σ by the closed form of T Gaussian steps."""

    def gaussian(epsilon: float, delta: float) -> float:
        def excess(mu: float) -> float:
            far = math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
            return float(stats.norm.cdf(mu / 2 - epsilon / mu) - far - delta)

        return math.sqrt(1000) / float(optimize.brentq(excess, 1e-3, 20))

    expected = math.sqrt(8 * math.log(math.exp(3) * 1000 / 1e-6)) * gaussian(1.5, 5e-7) / 18_194
    assert asi_liu.published_noise(3.0) == pytest.approx(expected, rel=2e-4)
    full = asi_liu.user_wise_noise(3.0, cohort_size=18_194)
    assert full == pytest.approx(gaussian(3.0, 1e-6) / 18_194, rel=2e-4)
    rows = asi_liu.FIGURES["chua-figure-3"].rows(group_sizes=(10,))
    crossings = {row["series"]: row["crossing"] for row in rows}
    assert 0.09 < crossings[asi_liu.PUBLISHED] < 0.1
    assert 0.09 < crossings[asi_liu.DERIVED] < 0.1
    below = [row for row in rows if row["tau_over_clip"] == 2**-4]
    above = [row for row in rows if row["tau_over_clip"] == 2**-3]
    assert below[0]["noise"] < below[2]["noise"] == above[2]["noise"] < above[0]["noise"]


def release(
    scores: tuple[float, ...], *, threshold: float, scale: float, epsilon: float = 1.0
) -> float:
    """Probability that AboveThreshold passes all scores but the last, and halts there."""

    def given(rho: float) -> float:
        passes = stats.laplace.sf(threshold + rho - np.array(scores), scale=2 * scale / epsilon)
        return float(
            stats.laplace.pdf(rho, scale=scale / epsilon)
            * np.prod(passes[:-1])
            * (1 - float(passes[-1]))
        )

    width = 40 * scale / epsilon
    return float(integrate.quad(given, -width, width, points=[0.0], limit=400)[0])


@pytest.mark.parametrize(("scale", "holds"), fast_then_slow([(4.0, True), (2.0, False)], fast=0))
def test_lemma_3_one_threshold_for_the_run_costs_half_epsilon_once(
    scale: float, holds: bool
) -> None:
    """Scores that differ by 2 everywhere; the twin has the noise for a sensitivity of 1."""
    ratios = [
        release((10.0,) * passes + (high,), threshold=8.0, scale=scale)
        / release((8.0,) * passes + (high + 2 * turn,), threshold=8.0, scale=scale)
        for passes in (1, 5, 20)
        for high in (-10.0, 0.0, 10.0)
        for turn in (-1, 1)
    ]
    assert (max(abs(math.log(ratio)) for ratio in ratios) <= 1.0 + 1e-6) is holds


def uncentred(n: int) -> tuple[Points, Points]:
    """The page's counterexample: two clusters, a user between them who joins both at 2τ."""
    half = n // 2 - 1
    rest = np.concatenate([np.full(half, 98.0), np.full(half, 102.0), [500.0]])
    return np.append(100.0, rest)[:, None], np.append(-500.0, rest)[:, None]


@pytest.mark.parametrize(("sensitivity", "epsilon"), [(2, 3.0), (2, 1.0), (1, 1.0)])
def test_as_printed_a_few_users_have_no_privacy(sensitivity: int, epsilon: float) -> None:
    """184 users (BookSum): the mean is one user's gradient, or zero, whenever the step passes.

    So δ is at least the probability of a pass, whatever the Gaussian noise, by a closed form that
    quadrature confirms; with AboveThreshold's noise for a sensitivity of 2, and for one of 1.
    """
    first, second = uncentred(184)
    assert score(first) == score(second) == (2 * 91**2 + 2) / 184
    p, q = inclusion(first), inclusion(second)
    assert p.tolist() == [1.0] + [0.0] * 183
    assert q.tolist() == [0.0] * 184
    gap, wide = 0.8 * 184 - score(first), 8 * sensitivity / epsilon
    passes = (4 * math.exp(-gap / wide) - math.exp(-2 * gap / wide)) / 6
    halts = release((0.0,), threshold=gap, scale=2.0 * sensitivity, epsilon=epsilon / 2)
    assert passes == pytest.approx(1 - halts, rel=1e-4)
    assert passes > 14e-6  # and δ was to be 1e-6
