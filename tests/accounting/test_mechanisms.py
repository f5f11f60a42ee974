"""Every mechanism against its formula, dp-accounting or brute force; broken prices are caught."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest

from tests.accounting.oracles import GOLDEN, mechanism_of, one_way
from tests.mechanisms import truncated
from userdp.accounting.mechanisms import binomial_steps

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: "T={steps} G={group_size}".format(**c))
def test_every_golden_delta_lies_in_the_bracket(case, direction):
    found = one_way(mechanism_of(case).pair(), case["epsilon"], remove=direction == "remove")
    if case[direction]["delta"] is None:  # the oracle only knows that it is below 1e-150
        assert found.upper <= 1e-140
        return
    assert found.lower <= mpmath.mpf(case[direction]["delta"]) <= found.upper
    assert found.upper - found.lower <= 1e-6 * found.upper
    assert found.note == ""


@pytest.mark.parametrize(
    "case",
    [case for case in GOLDEN if float(case["remove"]["delta"]) > 1e-9 and case["epsilon"] > 1],
    ids=lambda c: "T={steps} G={group_size}".format(**c),
)
def test_epsilon_at_a_golden_delta_is_the_golden_epsilon_and_narrow(case):
    found = mechanism_of(case).epsilon(float(case["remove"]["delta"]))
    assert found.lower * (1 - 1e-9) <= case["epsilon"] <= found.upper * (1 + 1e-9)
    assert found.width <= 1e-6 * found.upper
    assert (found.note, found.accountant) == ("", "contour")


# --------------------------------------------------------------- truncated Poisson sampling


def truncated_run(others, user, q, cap):
    """The sums of one truncated step and their probabilities: too many drawn, a random subset."""
    values = others + ([] if user is None else [user])
    found: dict[float, float] = {}
    for draw in itertools.product([False, True], repeat=len(values)):
        chance = math.prod(q if d else 1 - q for d in draw)
        drawn = [v for v, d in zip(values, draw, strict=True) if d]
        kept = list(itertools.combinations(drawn, min(cap, len(drawn))))
        for some in kept:
            total = sum(some)
            found[total] = found.get(total, 0.0) + chance / len(kept)
    return found


def hockey_stick(first, second, sigma, e):
    x = np.arange(-14.0, 14.0, 1e-3)

    def density(law):
        norm = sigma * math.sqrt(2 * math.pi)
        return sum(w * np.exp(-((x - v) ** 2) / (2 * sigma**2)) / norm for v, w in law.items())

    return float(np.maximum(density(first) - math.exp(e) * density(second), 0).sum() * 1e-3)


TRUNCATED = truncated(
    binomial_steps(sampling_probability=0.3, noise_multiplier=0.7, steps=1), cap=1, most_units=3
)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("others", [[-1.0, -1.0], [0.0, -1.0], [1.0, 1.0]])
def test_truncation_is_covered_on_small_data_sets(others, epsilon):
    q, cap = 0.3, 1
    assert TRUNCATED.overflow == pytest.approx(3 * q * q * (1 - q) + q**3, rel=1e-8)
    pair = truncated_run(others, 1.0, q, cap), truncated_run(others, None, q, cap)
    worst = max(hockey_stick(*pair, 0.7, epsilon), hockey_stick(*pair[::-1], 0.7, epsilon))
    assert worst <= TRUNCATED.delta(epsilon).upper + 1e-9


def test_forgetting_the_truncation_is_caught_on_a_small_data_set():
    pair = truncated_run([-1.0], 1.0, 0.9, 1), truncated_run([-1.0], None, 0.9, 1)
    worst = max(hockey_stick(*pair, 0.7, 2.0), hockey_stick(*pair[::-1], 0.7, 2.0))
    untruncated = binomial_steps(sampling_probability=0.9, noise_multiplier=0.7, steps=1)
    assert worst > untruncated.delta(2.0).upper + 0.05
    assert worst <= truncated(untruncated, cap=1, most_units=2).delta(2.0).upper
