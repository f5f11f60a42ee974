"""Fixed-size and truncated sampling: the draw, the price by an oracle of its own, broken twins."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tests.accounting.oracles import pld_bounds
from tests.plans import plan_of_size
from tests.speed import fast_then_slow
from userdp.core.errors import UseError
from userdp.plans import Plan
from userdp.sampling import (
    FixedSizeExamples,
    FixedSizeUsers,
    PoissonExamples,
    PoissonUsers,
    TruncatedExamples,
    TruncatedUsers,
)
from userdp.sampling.draws import Sampler, secret_generator

COUNTS = np.array([1, 2, 9, 30] * 25)  # 100 users; 275 examples under a cap of 4
VALUES = {
    "group_size": 4,
    "steps": 5,
    "l2_clip_norm": 0.5,
    "target_delta": 1e-5,
    "noise_multiplier": 3.0,
}


def plan(kind: type, **changes) -> Plan:
    by_user = kind in (FixedSizeUsers, TruncatedUsers)
    sizes = {"size": 10, "population": 95} if by_user else {"size": 20, "population": 250}
    if kind in (FixedSizeUsers, FixedSizeExamples):
        bounds = {"least_population": sizes["population"]}
    else:
        bounds = {"most_population": 2 * sizes["population"], "cap": 60 if by_user else 90}
    return plan_of_size(kind, **{**VALUES, **sizes, **bounds, **changes})


def cohorts(sampling, number, counts=COUNTS, seed=0):
    sampler = Sampler(sampling, counts, secret_generator(seed))
    return [sampler.draw() for _ in range(number)]


FIXED = [FixedSizeUsers, FixedSizeExamples]
TRUNCATED = [TruncatedUsers, TruncatedExamples]


# The draw.


def every_unit_alike(sampling, drawn) -> bool:
    who = np.concatenate([cohort.users[cohort.offsets[:-1]] for cohort in drawn])
    weights = np.ones(len(COUNTS)) if sampling.by_user else np.minimum(COUNTS, 4)
    expected = weights / weights.sum() * len(who)
    return stats.chisquare(np.bincount(who, minlength=len(COUNTS)), expected).pvalue > 1e-4


def sizes_differ(sampling, drawn) -> bool:
    """The checker: some draw has a size that the sampling never has."""
    fewest, most = sampling.sizes(sampling.total_units(COUNTS))
    return any(not fewest <= cohort.units <= most for cohort in drawn)


def sampling_of(kind: type):
    """Of a cap that nearly every draw passes, where draws are cut."""
    sampling = plan(kind).sampling
    return replace(sampling, cap=5) if kind in TRUNCATED else sampling


@pytest.mark.parametrize("kind", FIXED + TRUNCATED)
def test_invariant_1_every_draw_has_a_size_that_is_priced_and_every_unit_the_same_chance(kind):
    sampling = sampling_of(kind)
    drawn = cohorts(sampling, 3_000)
    assert not sizes_differ(sampling, drawn)
    assert max(cohort.units for cohort in drawn) == sampling.sizes(sampling.total_units(COUNTS))[1]
    assert every_unit_alike(sampling, drawn)


@pytest.mark.parametrize("kind", FIXED + TRUNCATED)
def test_invariant_1_twin_a_poisson_draw_or_a_cap_that_is_not_applied_is_caught(kind):
    sampling = sampling_of(kind)
    if kind in TRUNCATED:
        other = replace(sampling, cap=10**6)
    else:
        poisson = PoissonUsers if sampling.by_user else PoissonExamples
        other = poisson(sampling_probability=0.1, group_size=4)
    assert sizes_differ(sampling, cohorts(other, 200))


# The price.


@pytest.mark.parametrize("kind", fast_then_slow(FIXED))
def test_the_price_of_a_fixed_size_agrees_with_dp_accounting(kind):
    """The chance of j of the user's k among B of n + k, by counting; each moves the sum by 2."""
    priced = plan(kind)
    fixed = priced.sampling
    batch, n, k = fixed.batch_size, fixed.least_population, fixed.items
    whole = math.comb(n + k, batch)
    weights = [math.comb(k, j) * math.comb(n, batch - j) / whole for j in range(k + 1)]
    low, high = pld_bounds([(3.0, [2.0 * j for j in range(k + 1)], weights, 5)], 0.5)
    bracket = priced.mechanism.delta(0.5)
    assert low - 1e-13 <= bracket.lower <= bracket.upper <= high + 1e-13
    assert priced.guarantee(delta=min(high * 1.01, 0.5)).epsilon <= 0.5


@pytest.mark.parametrize("kind", FIXED)
def test_invariant_8_twin_forgetting_that_a_draw_displaces_another_unit_is_caught(kind):
    """The Poisson price at the same expected size is that of shifts by 1, and much too small."""
    priced = plan(kind)
    poisson = PoissonUsers if priced.sampling.by_user else PoissonExamples
    other = poisson.of_size(priced.denominator, population=priced.population, group_size=4)
    assert replace(priced, sampling=other).guarantee().epsilon < 0.8 * priced.guarantee().epsilon


@pytest.mark.parametrize("kind", TRUNCATED)
def test_the_price_of_a_cap_is_the_poisson_price_and_the_overflow(kind):
    priced = plan(kind)
    sampling = priced.sampling
    tau = 5 * stats.binom(sampling.most_population, sampling.sampling_probability).sf(sampling.cap)
    assert priced.mechanism.overflow == pytest.approx(tau, rel=1e-6)
    poisson = PoissonUsers if sampling.by_user else PoissonExamples
    uncut = poisson(sampling_probability=sampling.sampling_probability, group_size=4)
    plain = replace(priced, sampling=uncut)
    for epsilon in (0.1, 1.0):
        both = plain.mechanism.delta(epsilon).upper + (1 + math.exp(epsilon)) * tau
        assert priced.mechanism.delta(epsilon).upper == pytest.approx(both, rel=1e-6)


def test_invariant_8_twin_a_cap_priced_as_if_it_never_bound_is_caught():
    """By the δ that is left: a cap that overflows in one run of a thousand has no ε at 1e-5."""
    with pytest.raises(UseError, match="overflows"):
        plan(TruncatedUsers, cap=24).guarantee()


# The bounds on the store.


@pytest.mark.parametrize("kind", FIXED + TRUNCATED)
@pytest.mark.parametrize("beyond", [0, 1])
def test_invariant_4_a_store_outside_its_public_bounds_is_refused(kind, beyond):
    """Everybody in it must be free to leave, where it is fixed, and anybody to join, where cut."""
    sampling = plan(kind).sampling
    total = sampling.total_units(COUNTS)
    if kind in FIXED:
        sampling = replace(sampling, least_population=total - sampling.items + beyond)
    else:
        sampling = replace(sampling, most_population=total + sampling.items - beyond)
    with pytest.raises(UseError, match="operator only") if beyond else nullcontext():
        sampling.require_store(COUNTS)


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        (FixedSizeUsers, {"least_population": 96}, "least_population"),
        (TruncatedUsers, {"most_population": 94}, "most_population"),
        (FixedSizeUsers, {"size": 9.5}, "whole number"),
        (FixedSizeExamples, {"size": 20, "least_population": 19}, "at most least_population"),
        *(
            (TruncatedUsers, {name: bad}, name)
            for name in ("cap", "most_population")
            for bad in (math.nan, 0, -1, 1.5, math.inf)
        ),
    ],
)
def test_bounds_that_are_none_or_contradict_the_declared_population_are_refused(
    kind, values, words
):
    with pytest.raises((UseError, ValueError), match=words):
        plan(kind, **values)
