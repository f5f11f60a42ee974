"""What the accountants share: the refusal of impossible budgets, and events for dp-accounting."""

from __future__ import annotations

import math

import pytest

from tests.plans import uls_plan
from tests.speed import fast_then_slow
from userdp.accounting import Accountant, binomial_steps, rdp
from userdp.accounting import dp_accounting_backend as backend
from userdp.accounting.accountants import calibrate_by, epsilon_by
from userdp.accounting.mechanisms import Mixture
from userdp.errors import FailureError, UseError

STEPS = binomial_steps(sampling_probability=0.1, noise_multiplier=1.0, steps=3)


@pytest.mark.parametrize("accountant", list(Accountant), ids=str)
@pytest.mark.parametrize("epsilon", [math.nan, math.inf, 0.0, -1.0])
def test_no_accountant_calibrates_to_an_impossible_epsilon(accountant, epsilon):
    with pytest.raises(UseError, match="target_epsilon"):
        calibrate_by(accountant, STEPS, target_epsilon=epsilon, target_delta=1e-6)


@pytest.mark.parametrize("pure_epsilon", [0.1, 1.0, 3.0])
def test_the_event_of_a_pure_answer_costs_its_epsilon(pure_epsilon):
    library = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(library.NeighboringRelation.REPLACE_ONE)
    accountant.compose(backend.randomised_response_event(pure_epsilon))
    assert accountant.get_epsilon(1e-12) == pytest.approx(pure_epsilon, rel=1e-3)


def test_equal_mechanisms_are_priced_once(monkeypatch):
    """A store of many runs of few plans is told in several places, and each charge has a price."""
    priced, right = [], Mixture.epsilon
    monkeypatch.setattr(
        Mixture, "epsilon", lambda self, delta: priced.append(self) or right(self, delta)
    )
    plans = [uls_plan(steps=37, noise_multiplier=1.375) for _ in range(20)]
    prices = {plan.guarantee().epsilon for plan in plans}
    assert len(prices) == 1
    once = len(priced)
    assert once <= 7  # one for each share of delta that is tried
    uls_plan(steps=37, noise_multiplier=1.5).guarantee()
    assert len(priced) > once


@pytest.mark.parametrize("noise", [1e-30, 1e30])
@pytest.mark.parametrize("accountant", list(Accountant), ids=str)
def test_the_least_and_the_most_noise_that_is_accepted_have_a_price(accountant, noise):
    """Squares of them stay numbers; dp-accounting, whose grids do not, says so."""
    if accountant is Accountant.DP_ACCOUNTING:
        pytest.importorskip("dp_accounting")
    steps = binomial_steps(sampling_probability=0.1, noise_multiplier=noise, steps=3)
    if accountant is Accountant.DP_ACCOUNTING:
        with pytest.raises(FailureError, match="cannot price this mechanism"):
            epsilon_by(accountant, steps, 1e-6)
        return
    upper = epsilon_by(accountant, steps, 1e-6).upper
    assert (upper > 1e50) if noise < 1 else (upper < 0.1)


@pytest.mark.parametrize(
    "accountant",
    fast_then_slow(
        sorted(Accountant, key=lambda one: one is Accountant.DP_ACCOUNTING),
        fast=len(Accountant) - 1,
    ),
    ids=str,
)
def test_every_accountant_answers_by_its_own_name_and_none_below_the_truth(accountant):
    if accountant is Accountant.DP_ACCOUNTING:
        pytest.importorskip("dp_accounting")
    found = epsilon_by(accountant, STEPS, 1e-6)
    assert found.accountant == str(accountant)
    assert found.upper >= epsilon_by(Accountant.CONTOUR, STEPS, 1e-6).lower
    if accountant is Accountant.RDP:
        constants = {"sampling_probability": 0.1, "noise_multiplier": 1.0, "steps": 3}
        assert found == rdp.epsilon(1e-6, group_size=1, **constants)
