"""Bounds against brute force, and against mechanisms whose ε is known."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from userdp.auditing import guesses
from userdp.auditing.guesses import canary_bound, one_run_epsilon, one_run_p_value


@pytest.mark.parametrize(("m", "r", "v"), [(6, 6, 5), (8, 4, 4), (9, 9, 9), (5, 3, 0)])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.0])
def test_without_delta_it_is_the_tail_of_the_sum_of_all_outcomes(m, r, v, epsilon):
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    tail = sum(
        right ** sum(o) * (1 - right) ** (r - sum(o))
        for o in itertools.product((0, 1), repeat=r)
        if sum(o) >= v
    )
    found = one_run_p_value(canaries=m, guesses=r, correct=v, epsilon=epsilon, delta=0.0)
    assert found == pytest.approx(tail, rel=1e-9)


def test_delta_costs_what_theorem_5_2_says():
    """The published loop, written out."""
    m, r, v, epsilon, delta = 40, 30, 25, 1.0, 1e-3
    q = 1 / (1 + math.exp(-epsilon))
    beta = stats.binom.sf(v - 1, r, q)
    alpha = total = 0.0
    for i in range(1, v + 1):
        total += stats.binom.pmf(v - i, r, q)
        alpha = max(alpha, total / i)
    found = one_run_p_value(canaries=m, guesses=r, correct=v, epsilon=epsilon, delta=delta)
    assert found == pytest.approx(beta + 2 * m * delta * alpha)


def test_the_bound_is_the_epsilon_at_which_the_p_value_is_the_level():
    asked = {"canaries": 100, "guesses": 100, "correct": 95, "delta": 1e-5}
    found = one_run_epsilon(**asked)
    assert 1.5 < found < math.log(95 / 5)
    assert one_run_p_value(**asked, epsilon=found) <= 0.05
    assert one_run_p_value(**asked, epsilon=found + 1e-6) > 0.05 - 1e-6
    assert one_run_epsilon(canaries=100, guesses=100, correct=55, delta=0.0) == 0.0


def bounds_of(epsilon, runs, draw, canaries=200):
    """Of randomised response: each coin is told rightly with the probability that ε allows."""
    found = []
    for _ in range(runs):
        included = draw.random(canaries) < 0.5
        honest = draw.random(canaries) < math.exp(epsilon) / (1 + math.exp(epsilon))
        scores = np.where(honest, included, ~included) + draw.random(canaries) / 2
        found.append(canary_bound({"told": scores}, included, delta=1e-6).epsilon_lower)
    return np.array(found)


@pytest.mark.slow
def test_the_bound_is_below_the_true_epsilon_and_a_twin_without_confidence_is_caught(monkeypatch):
    found = bounds_of(1.5, 40, np.random.default_rng(0))
    assert (found > 1.5).mean() <= 0.05
    assert np.median(found) > 0.6

    def optimistic(*, canaries, guesses, correct, delta, confidence):
        return math.log(max(correct, 1) / max(guesses - correct, 0.5))

    monkeypatch.setattr(guesses, "one_run_epsilon", optimistic)
    assert (bounds_of(1.5, 40, np.random.default_rng(0)) > 1.5).mean() > 0.05
