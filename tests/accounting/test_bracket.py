"""What runs draws noise that ends somewhere; its distance from a Gaussian is part of every δ."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from tests.federated.toys import PRIVATE
from tests.federated.toys import plan as federation
from tests.ledgers import reserve
from tests.plans import changed_plan, els_plan, uls_plan
from tests.speed import fast_then_slow
from userdp.accounting import Accountant, gaussian_steps
from userdp.accounting import bracket as module
from userdp.accounting.bracket import (
    Bracket,
    close_epsilon,
    ideal_delta_for,
    implemented_delta,
    implemented_epsilon,
)
from userdp.accounting.private_selection import TruncatedNegativeBinomial
from userdp.claims import claim
from userdp.core.errors import UseError
from userdp.ledger import StoreLedger
from userdp.noise.gaussian import distance
from userdp.plans import FixedGrid, PrivateSelection

GAUSS = gaussian_steps(noise_multiplier=1.0, steps=1)


# The addition is enough, and without it the claim would be false.


def exact_delta(end, epsilon):
    """δ of N(0,1) against N(1,1), both cut off at ``end`` deviations, by quadrature."""
    x = np.linspace(-end, end + 1, 400_001)
    mass = 1 - 2 * stats.norm.sf(end)
    here = np.where(np.abs(x) <= end, stats.norm.pdf(x), 0) / mass
    there = np.where(np.abs(x - 1) <= end, stats.norm.pdf(x - 1), 0) / mass
    step = x[1] - x[0]
    return float(
        max(
            np.maximum(a - math.exp(epsilon) * b, 0).sum() * step
            for a, b in ((here, there), (there, here))
        )
    )


@pytest.mark.parametrize("end", [2.0, 3.0, 4.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 4.0, 6.0])
def test_noise_that_ends_is_covered_by_the_addition(end, epsilon, monkeypatch):
    beyond = 2 * float(stats.norm.sf(end))
    monkeypatch.setattr(module, "distance", lambda steps: steps * beyond)
    bound = implemented_delta(GAUSS.delta(epsilon).upper, epsilon, steps=1)
    assert exact_delta(end, epsilon) <= bound + 1e-9


def test_twin_the_ideal_mechanisms_delta_is_exceeded_by_noise_that_ends():
    assert exact_delta(3.0, 4.0) > 20 * GAUSS.delta(4.0).upper


def test_invariant_8_a_share_of_delta_pays_at_the_epsilon_that_it_leaves():
    """(1 + e^5) τ is 75 times (1 + e^0) τ: a share may suffice for one and not for the other."""
    five = Bracket(lower=5.0, upper=5.0, accountant="made up")

    def close(distance):
        return close_epsilon(lambda delta: five, 0.1, distance=distance, shares=(0.1, 0.5))

    assert close(1e-3) is None
    paid = close(1e-5)
    assert paid is not None
    assert paid.upper == 5.0


@pytest.mark.parametrize(("end", "delta"), [(3.0, 0.3), (4.0, 0.3), (4.0, 0.05)])
def test_invariant_8_the_epsilon_of_what_runs_holds_for_noise_that_ends(end, delta, monkeypatch):
    beyond = 2 * float(stats.norm.sf(end))
    monkeypatch.setattr(module, "distance", lambda steps: steps * beyond)
    found = implemented_epsilon(GAUSS.epsilon, delta, steps=1).upper
    assert GAUSS.epsilon(delta).upper <= found < 3
    assert exact_delta(end, found) <= delta + 1e-9


# Every claim and every calibration goes through it.

FAR = {"noise_multiplier": None, "target_epsilon": 2.0}


def store_claim(folder):
    """Of two runs."""
    for run in ("one", "two"):
        reserve(StoreLedger(folder), run, uls_plan())
    return [claim(folder).guarantee]


def selection(folder):
    law = TruncatedNegativeBinomial.of_mean(5, eta=0.0)
    return [PrivateSelection(plans=(uls_plan(),), score_epsilon=0.1, repetitions=law).guarantee()]


CLAIMS = {
    "a plan": lambda folder: [els_plan().guarantee(3, delta=1e-4)],
    "group privacy": lambda folder: [els_plan(accountant=Accountant.GROUP_PRIVACY).guarantee()],
    "a store": store_claim,
    "a fixed grid": lambda folder: [
        FixedGrid(plans=(uls_plan(),) * 2, score_epsilon=0.1).guarantee()
    ],
    "a private selection": selection,
    **{
        algorithm: lambda folder, algorithm=algorithm: federation(
            3.0, algorithm=algorithm
        ).guarantees()
        for algorithm in PRIVATE
    },
}


@pytest.mark.parametrize("kind", CLAIMS)
def test_invariant_8_every_claim_pays_for_the_noises_distance(kind, tmp_path, monkeypatch):
    """Made visible by noise that ends early: a fortieth of δ for each step."""
    folders = [tmp_path / name for name in ("now", "far")]
    for folder in folders:
        folder.mkdir()
    now = CLAIMS[kind](folders[0])
    monkeypatch.setattr(module, "distance", lambda steps: steps * 1e-9)
    for ideal, far in zip(now, CLAIMS[kind](folders[1]), strict=True):
        assert ideal.epsilon * (1 + 1e-6) < far.epsilon


@pytest.mark.parametrize("per_step", [distance(1), 1e-20, 1e-10, 4e-8])
@pytest.mark.parametrize("make", fast_then_slow([uls_plan, els_plan]))
def test_a_calibrated_plan_is_within_its_budget(make, per_step, monkeypatch):
    monkeypatch.setattr(module, "distance", lambda steps: steps * per_step)
    plan = make(**FAR)
    assert plan.guarantee().epsilon <= 2.0
    assert (
        changed_plan(plan, noise_multiplier=plan.noise.multiplier * 0.8).guarantee().epsilon > 2.0
    )


# It moves no printed digit, is monotone, and refuses what cannot be claimed.


@pytest.mark.parametrize("delta", [1e-44, 1e-60, 5e-324])
def test_a_delta_below_the_distance_is_refused_and_never_claimed(delta):
    with pytest.raises(UseError, match="too small"):
        ideal_delta_for(1.0, delta, steps=5)
    with pytest.raises(UseError, match="too small"):
        uls_plan(**FAR, target_delta=delta)
    assert uls_plan().guarantee(delta=delta).epsilon == math.inf
