"""What (ε, δ) means, against the worst pair of distributions by enumeration of all tests."""

from __future__ import annotations

import itertools
import math

import pytest

from userdp.errors import UseError
from userdp.reporting.meaning import FALSE_ALARMS, factor_up, meaning_of, percent_up


def worst_pair(epsilon: float, delta: float) -> tuple[list[float], list[float]]:
    """The pair that dominates all (ε, δ)-indistinguishable ones (Kairouz et al. 2015, Eq. 11)."""
    likely = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    unlikely = (1 - delta) / (1 + math.exp(epsilon))
    return [delta, likely, unlikely, 0.0], [0.0, unlikely, likely, delta]


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-9), (0.5, 1e-5), (2.0, 1e-3), (8.0, 1e-5)])
def test_the_bounds_are_those_of_the_worst_pair(epsilon: float, delta: float) -> None:
    took_part, did_not = worst_pair(epsilon, delta)
    tests = list(itertools.product((0, 1), repeat=4))  # accuse on outcome i?
    guess = max(
        sum(p if a else q for a, p, q in zip(test, took_part, did_not, strict=True)) / 2
        for test in tests
    )
    found = meaning_of(epsilon, delta)
    assert found.best_guess == pytest.approx(guess, rel=1e-12)
    # The best randomised test accuses in order of likelihood ratio until the false alarms are used.
    allowed, detected = FALSE_ALARMS, 0.0
    for p, q in zip(took_part, did_not, strict=True):
        part = min(1.0, allowed / q) if q else 1.0
        detected, allowed = detected + part * p, allowed - part * q
    assert found.detection == pytest.approx(detected, rel=1e-9)


def test_the_bounds_grow_with_epsilon() -> None:
    found = [meaning_of(epsilon, 1e-5) for epsilon in (0.0, 0.1, 1.0, 4.0, 8.0, 50.0, 1000.0)]
    for less, more in itertools.pairwise(found):
        assert less.best_guess <= more.best_guess <= 1
        assert less.detection <= more.detection <= 1


def test_numbers_are_rounded_up() -> None:
    assert percent_up(0.905801) == "90.59 %"
    assert percent_up(0.999999) == "100.00 %"
    assert factor_up(math.exp(8)) == "2,990"
    assert factor_up(1.0) == "1.00"


@pytest.mark.parametrize("epsilon", [math.nan, -1.0, math.inf])
def test_nothing_is_said_about_what_is_no_epsilon(epsilon: float) -> None:
    with pytest.raises(UseError):
        meaning_of(epsilon, 1e-5)
