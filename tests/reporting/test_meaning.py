"""What a claim means, against the best test there is: by enumeration, closed form and a ROC."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm

from tests.accounting.oracles import one_way
from tests.reporting.conftest import MakeRun, examples_plan
from tests.speed import fast_then_slow
from userdp.accounting.mechanisms import binomial_steps
from userdp.accounting.tradeoff import curve_at
from userdp.claims import claim
from userdp.core.errors import UseError
from userdp.reporting.meaning import (
    FALSE_ALARMS,
    OF_THE_CLAIM,
    OF_THE_CURVE,
    meaning_of,
    meaning_of_claim,
)


def worst_pair(epsilon: float, delta: float) -> tuple[list[float], list[float]]:
    """The pair that dominates all (ε, δ)-indistinguishable ones (Kairouz et al. 2015, Eq. 11)."""
    likely = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    unlikely = (1 - delta) / (1 + math.exp(epsilon))
    return [delta, likely, unlikely, 0.0], [0.0, unlikely, likely, delta]


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-9), (0.5, 1e-5), (2.0, 1e-3), (8.0, 1e-5)])
def test_the_bounds_are_those_of_the_worst_pair(epsilon: float, delta: float) -> None:
    took_part, did_not = worst_pair(epsilon, delta)
    guess = max(
        sum(p if a else q for a, p, q in zip(test, took_part, did_not, strict=True)) / 2
        for test in list(itertools.product((0, 1), repeat=4))
    )
    found = meaning_of(epsilon, delta)
    assert found.best_guess == pytest.approx(guess, rel=1e-12)
    # The best randomised test accuses in order of likelihood ratio until the false alarms are used.
    allowed, detected = FALSE_ALARMS, 0.0
    for p, q in zip(took_part, did_not, strict=True):
        part = min(1.0, allowed / q) if q else 1.0
        detected, allowed = detected + part * p, allowed - part * q
    assert found.detection == pytest.approx(detected, rel=1e-9)


@pytest.mark.parametrize("epsilon", [math.nan, -1.0, math.inf])
def test_nothing_is_said_about_what_is_no_epsilon(epsilon: float) -> None:
    with pytest.raises(UseError):
        meaning_of(epsilon, 1e-5)


# ------------------------------------------------------- one mechanism: its own trade-off curve


def best_tests(p: float, group_size: int, sigma: float) -> tuple[float, float, float]:
    """One step in closed form: detection of presence, of absence; the best guess.

    The likelihood ratio of Σ_k Bin(k; G, p) N(k, σ²) to N(0, σ²) rises in x, so that the best tests
    (Neyman and Pearson) accuse above, or below, a threshold.
    """
    k = np.arange(group_size + 1)
    weights = binom.pmf(k, group_size, p)

    def above(x: float) -> float:
        return float(weights @ norm.sf((x - k) / sigma))

    presence = above(float(norm.isf(FALSE_ALARMS)) * sigma)
    low = brentq(lambda x: 1 - above(x) - FALSE_ALARMS, -20 * sigma, 20 * sigma + group_size)
    absence = float(norm.cdf(low / sigma))
    crossing = brentq(
        lambda x: float(weights @ np.exp((2 * k * x - k**2) / (2 * sigma**2))) - 1,
        -40 * sigma,
        group_size,
    )
    return presence, absence, (1 + above(crossing) - float(norm.sf(crossing / sigma))) / 2


@pytest.mark.parametrize(
    ("p", "group_size", "sigma", "steps"),
    fast_then_slow([(1.0, 1, 5.0, 16), (0.3, 4, 0.8, 1), (0.01, 8, 0.3, 1), (1.0, 1, 0.15, 1)]),
)
def test_one_step_is_bounded_by_the_best_test_and_not_much_more(p, group_size, sigma, steps):
    """Steps that everybody joins are one, whose noise is smaller by the root of their number."""
    mechanism = binomial_steps(
        sampling_probability=p, group_size=group_size, noise_multiplier=sigma, steps=steps
    )
    found = meaning_of(mechanism.epsilon(1e-5).upper, 1e-5, mechanism)
    presence, absence, guess = best_tests(p, group_size, sigma / math.sqrt(steps))
    assert found.bounded_by == OF_THE_CURVE
    assert guess <= found.best_guess <= guess + 1e-6
    # Both orders of the data sets are covered, so that the sharper line of either is used.
    assert max(presence, absence) <= found.detection <= 1.02 * max(presence, absence) + 1e-5


@pytest.mark.pitfall(number=42)
def test_broken_twin_a_curve_of_one_order_only_is_caught() -> None:
    """δ of adding a user alone is below that of removing one: a true test detects more."""
    mechanism = binomial_steps(sampling_probability=0.1, noise_multiplier=0.4, steps=1)
    presence, _, _ = best_tests(0.1, 1, 0.4)

    def bound(delta_of_epsilon: Callable[[float], float]) -> float:
        curve = curve_at(delta_of_epsilon, FALSE_ALARMS, most_epsilon=10.0)
        return curve.max_true_positive_rate(FALSE_ALARMS)

    both = bound(lambda e: mechanism.delta(e).upper)
    assert bound(lambda e: one_way(mechanism.pair(), e, remove=False).upper) < presence <= both


def test_a_claim_of_several_parts_keeps_epsilon_and_delta_and_says_so(make_run: MakeRun) -> None:
    one = claim(make_run("one", examples_plan()) / "ledger.jsonl")
    assert one.mechanism == examples_plan().mechanism
    found = meaning_of_claim(one)
    assert found is not None
    assert found.bounded_by == OF_THE_CURVE
    bare = meaning_of(one.guarantee.epsilon, one.guarantee.delta)
    assert bare.bounded_by == OF_THE_CLAIM
    assert found.detection < bare.detection
    assert found.best_guess < bare.best_guess
    assert meaning_of_claim(claim(make_run("plain", private=False) / "ledger.jsonl")) is None
