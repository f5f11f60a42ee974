"""The trade-off function against closed forms and attacks; and verdicts on Conjecture 1."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr, ndtri

from papers.conjecture_1 import Verdict, verdict_of
from userdp.accounting import Bracket
from userdp.accounting.tradeoff import DeltaCurve


def gaussian_delta(mu, epsilon):
    tail = math.exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)))
    return max(float(ndtr(mu / 2 - epsilon / mu)) - tail, 0.0)


def gaussian_curve(mu, *, points=65):
    epsilons = tuple(np.linspace(0, mu * (mu / 2 + 7), points))
    return DeltaCurve(epsilons=epsilons, deltas=tuple(gaussian_delta(mu, e) for e in epsilons))


def gaussian_tpr(mu, false_positive_rate):
    """The Neyman-Pearson test of N(0, 1) against N(μ, 1)."""
    return float(ndtr(ndtri(false_positive_rate) + mu))


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_a_gaussian_is_bounded_tightly(mu):
    for x in (1e-9, 1e-6, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999):
        bound, truth = gaussian_curve(mu, points=513).max_true_positive_rate(x), gaussian_tpr(mu, x)
        assert truth <= bound + 1e-15
        assert bound <= truth * 1.02 + 1e-11


def test_randomised_response_is_exact():
    """Pure ε-DP: TPR = min(e^ε x, 1 - e^{-ε}(1 - x)), attained by randomised response."""
    epsilon = 1.2
    curve = DeltaCurve(epsilons=(epsilon,), deltas=(0.0,))
    for x in (0.0, 0.05, 0.2, 0.5, 0.9, 1.0):
        exact = min(math.exp(epsilon) * x, 1 - math.exp(-epsilon) * (1 - x))
        assert curve.max_true_positive_rate(x) == pytest.approx(exact, abs=1e-14)
        assert curve.max_true_positive_rate(x) >= exact


# ------------------------------------------------------------------ Conjecture 1


def test_a_verdict_on_conjecture_1_needs_brackets_that_do_not_overlap():
    low, high, wide = (
        Bracket(lower=lower, upper=upper, accountant="none")
        for lower, upper in ((0.0, 0.1), (0.2, 0.3), (0.0, 1.0))
    )
    assert verdict_of(low, high) is Verdict.HOLDS
    assert verdict_of(high, low) is Verdict.FAILS
    assert verdict_of(wide, low) is Verdict.UNDECIDED
