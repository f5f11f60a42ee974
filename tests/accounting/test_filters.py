"""The Rényi filter against its worst adversary, by backward induction, and broken twins."""

from __future__ import annotations

import math
from functools import cache

import pytest

from tests.accounting import adversary
from userdp.accounting import binomial_steps, gaussian_steps
from userdp.accounting.certified_search import bisect
from userdp.accounting.filters import MOST_STEPS, Cost, RenyiFilter
from userdp.accounting.mechanisms import hypergeometric_steps

EPSILON, DELTA = 3.0, 1e-6
TURNS = 12
FILTER = RenyiFilter.opened(epsilon=EPSILON, delta=DELTA)


def step(q, sigma):
    return binomial_steps(sampling_probability=q, noise_multiplier=sigma, steps=1)


def sigma_of(q, cost):
    """The noise at which one step costs just this part of the filter's capacity."""
    return bisect(
        lambda sigma: FILTER.of_steps(step(q, sigma)).rho <= cost * FILTER.capacity, 0.2, 60.0
    )


def pure_of(cost):
    return bisect(lambda e: FILTER.of_guarantee(e, 0.0).rho <= cost * FILTER.capacity, 20.0, 1e-6)


@cache
def menu(remove):
    """Releases that cost 1, 3 or all of the filter's parts: sampled, full batch, answers."""
    found = []
    for parts in (1, 3, TURNS):
        cost = parts / TURNS * (1 - 1e-9)
        found += [
            (parts, adversary.sampled(q, sigma_of(q, cost), remove=remove)) for q in (0.02, 0.3, 1)
        ]
        found.append((parts, adversary.answer(pure_of(cost))))
    return found


@pytest.mark.parametrize("remove", [True, False], ids=["remove", "add"])
def test_the_worst_adversary_stays_within_delta(remove):
    """He chooses among twelve kinds of release each time, by everything that he has seen."""
    low, high = adversary.worst(
        TURNS,
        lambda left: [(law, left - cost) for cost, law in menu(remove) if cost <= left],
        lambda left: EPSILON,
    )
    assert high <= DELTA
    assert low > 0.3 * DELTA, "a rare loud release nearly reaches it: the filter wastes little"
    assert high - low < 0.5 * low, "and the grid is fine enough to say so"


def test_the_adversary_of_one_gaussian_reaches_its_exact_delta():
    """The oracle itself, against a closed form."""
    sigma = 1.5
    low, high = adversary.worst(
        1,
        lambda left: [(adversary.sampled(1, sigma, remove=True), 0)] if left else [],
        lambda left: EPSILON,
    )
    exact = gaussian_steps(noise_multiplier=sigma, steps=1).delta(EPSILON).upper
    assert low <= exact <= high
    assert high - low < 0.05 * exact


# Broken twins: what would be claimed without a filter.


def test_twin_runs_that_were_chosen_by_outputs_composed_as_a_series_exceed_delta():
    """At each turn he takes a loud or a quiet step; ε of those that he took is claimed."""
    turns, loud, quiet = 5, 2.0, 8.0

    @cache
    def claimed(state):
        mu = math.sqrt(state[0] / loud**2 + state[1] / quiet**2)  # Gaussian mechanisms add up so
        return gaussian_steps(shift=mu, noise_multiplier=1.0, steps=1).epsilon(DELTA).upper

    laws = [adversary.sampled(1, sigma, remove=True) for sigma in (loud, quiet)]

    def moves(state):
        if sum(state) == turns:
            return []
        return [(laws[0], (state[0] + 1, state[1])), (laws[1], (state[0], state[1] + 1))]

    low, _ = adversary.worst((0, 0), moves, lambda at: claimed(at) if any(at) else math.inf)
    assert low > 1.3 * DELTA


# What the filter admits.


def test_capacity_and_conversion_meet_the_budget():
    from userdp.accounting import rdp

    share = DELTA * (1 - 2.0**-40)
    assert rdp.epsilon_of_curve({FILTER.order: FILTER.capacity}, share) <= EPSILON
    assert rdp.epsilon_of_curve({FILTER.order: FILTER.capacity * (1 + 1e-9)}, share) > EPSILON


def test_a_filter_admits_runs_up_to_its_capacity_and_not_one_more():
    run = FILTER.of_steps(step(0.02, 1.0).with_steps(300))
    most = int(FILTER.capacity / run.rho)
    assert FILTER.admits([run] * most)
    assert not FILTER.admits([run] * (most + 1))
    assert 0 < FILTER.left([run] * most) < run.rho
    assert FILTER.left([run] * (most + 1)) == 0


def test_what_has_only_a_guarantee_takes_of_the_reserved_delta():
    odd = hypergeometric_steps(batch_size=5, population=100, noise_multiplier=3.0, steps=10)
    assert FILTER.of_steps(odd) is None
    known = FILTER.of_guarantee(0.4, DELTA / 10)
    assert known.rho == FILTER.of_guarantee(0.4, 0.0).rho
    assert not FILTER.admits([known]), "nothing was reserved"
    reserving = RenyiFilter.opened(epsilon=EPSILON, delta=DELTA, reserved=0.2)
    assert reserving.capacity < FILTER.capacity
    assert reserving.admits([known])
    assert not reserving.admits([known] * 3), "three tenths are more than a fifth"


def test_what_has_no_price_is_never_admitted():
    assert not FILTER.admits([FILTER.of_guarantee(math.inf, 0.0)])
    assert not FILTER.admits([Cost(rho=math.nan)])
    assert not FILTER.admits([Cost(rho=0.0, steps=2.0 * MOST_STEPS)])
