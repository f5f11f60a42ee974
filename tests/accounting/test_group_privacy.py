"""Group privacy against exact recursion, and a Gaussian's closed form."""

from __future__ import annotations

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.accounting import oracles
from userdp.accounting.group_privacy import (
    Conversion,
    example_target,
    group_epsilon,
    group_guarantee,
    log_factor,
)

EPSILONS = st.floats(0, 30)
DELTAS = st.floats(1e-300, 0.1)
GROUPS = st.integers(1, 64)


def recursion(epsilon, delta, k):
    """δ of k examples, one at a time: P_k <= e^ε P_{k-1} + δ."""
    with mpmath.mp.workdps(50):
        total = mpmath.mpf(0)
        for _ in range(k):
            total = mpmath.exp(mpmath.mpf(epsilon)) * total + mpmath.mpf(delta)
        return total


def gaussian_delta(mu, epsilon):
    """Rounded up."""
    return float(oracles.gaussian_delta(mu, epsilon)) * (1 + 1e-14)


def gaussian_epsilon(mu, delta):
    low, high = 0.0, 1000.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(mu, middle) > delta else (low, middle)
    return high


@settings(max_examples=60, derandomize=True, deadline=None)
@given(EPSILONS, DELTAS, GROUPS)
def test_best_is_the_recursion_rounded_up(epsilon, delta, k):
    exact = recursion(epsilon, delta, k)
    found = group_guarantee(epsilon, delta, k)
    assert found.epsilon == k * epsilon
    if math.isinf(found.delta):
        assert exact > 1e307
    else:
        assert exact <= found.delta
        assert found.delta <= float(exact * (1 + 1e-11))


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.floats(1e-3, 600), st.floats(1e-12, 0.1), GROUPS, st.sampled_from(Conversion))
def test_the_example_target_gives_the_group_what_was_asked(epsilon, delta, k, conversion):
    target = example_target(epsilon, delta, k, conversion)
    back = group_guarantee(target.epsilon, target.delta, k, conversion)
    assert back.epsilon <= epsilon
    assert back.delta <= delta
    assert back.delta >= delta * (1 - 1e-8)


@pytest.mark.parametrize("conversion", Conversion)
def test_group_epsilon_of_a_gaussian_bounds_the_truth(conversion):
    """k examples of a Gaussian mechanism with shift μ are one with shift kμ."""
    mu, delta = 0.3, 1e-6
    for k in (1, 2, 4, 8):
        found = group_epsilon(lambda e: gaussian_delta(mu, e), k, delta, conversion)
        assert found >= gaussian_epsilon(k * mu, delta)
        at = found / k
        factor = math.exp(log_factor(conversion, at, k))
        assert gaussian_delta(mu, at) * factor == pytest.approx(delta, rel=1e-4)
    single = group_epsilon(lambda e: gaussian_delta(mu, e), 1, delta)
    assert single == pytest.approx(gaussian_epsilon(mu, delta), rel=1e-8)


def test_group_epsilon_diverges_where_the_curve_is_flat_at_round_off():
    """An accountant that cannot go below 1e-15 ends in ε = ∞ (Ganesh's finding for k >= 9)."""
    floored = [group_epsilon(lambda e: max(gaussian_delta(1.5, e), 1e-15), k, 1e-6) for k in (1, 6)]
    assert floored[0] < 10
    assert floored[1] == math.inf
    assert group_epsilon(lambda e: gaussian_delta(1.5, e), 6, 1e-6) < math.inf


def test_a_curve_that_underflows_to_zero_is_not_taken_for_pure_dp():
    """0 stands for 5e-324: a group of 100 needs more than a double can hold, not ε = 100·27."""
    assert group_epsilon(lambda e: 0.0 if e > 27 else 1e-3, 100, 1e-6) == math.inf
    assert group_epsilon(lambda e: 0.0 if e > 27 else 1e-3, 10, 1e-6) == pytest.approx(270)
