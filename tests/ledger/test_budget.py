"""A store's budget with a filter, what is admitted and claimed."""

from __future__ import annotations

import pytest

from tests.ledger.stories import FILTER, PLAN, PRICE, write
from tests.ledgers import reserve, settle
from tests.plans import changed_plan, els_plan
from userdp.accounting.filters import RenyiFilter
from userdp.claims import claim
from userdp.commands.budget_overview import overview
from userdp.core.errors import UseError
from userdp.ledger import StoreLedger
from userdp.ledger.lines import Open, OpenBudget
from userdp.sampling import FixedSizeUsers


@pytest.fixture
def bare(tmp_path):
    return StoreLedger(tmp_path)


@pytest.fixture
def ledger(bare):
    write(bare, "filter")
    return bare


def told(ledger):
    return claim(ledger.path.parent)


def test_the_whole_budget_is_claimed_from_the_first_charge(ledger):
    write(ledger, "run one")
    before = told(ledger)
    assert (before.guarantee.epsilon, before.guarantee.delta) == (8.0, 1e-5)
    assert before.guarantee.accountant == "renyi-filter"
    assert (before.standing, before.conditions) == ("guarantee", ())
    assert "fixed before its first use" in before.composition
    write(ledger, "ask q 0.5")
    assert told(ledger).guarantee == before.guarantee


def fill(ledger, plan, most=50):
    """Charge runs of a plan until one is refused; how many were taken."""
    for number in range(most):
        try:
            reserve(ledger, f"run-{number}", plan, logged=False)
        except UseError:
            return number
    raise AssertionError("nothing was ever refused")


def test_invariant_12_more_runs_fit_than_by_adding_up_and_the_next_one_is_refused(ledger):
    loud = changed_plan(PLAN, noise_multiplier=1.2)
    taken, before = fill(ledger, loud), ledger.path.read_bytes()
    with pytest.raises(UseError, match=r"beyond its budget of epsilon 8 .* needs .* % .* is left"):
        reserve(ledger, "one-more", loud)
    assert taken >= 2 * int(8.0 / loud.guarantee().epsilon) > 0
    assert ledger.path.read_bytes() == before, "what was refused left nothing"
    assert told(ledger).guarantee.epsilon == 8.0


@pytest.mark.parametrize(("reserved", "runs"), [(0.0, 0), (0.25, 2)])
def test_fixed_size_draws_take_of_the_reserve(bare, reserved, runs):
    sizes = FixedSizeUsers(group_size=4, batch_size=10, least_population=90)
    odd = changed_plan(PLAN, sampling=sizes, noise_multiplier=8.0, target_delta=1e-6)
    opened = RenyiFilter.opened(epsilon=8.0, delta=1e-5, reserved=reserved)
    bare.append(OpenBudget(run_id="b", filter=opened))
    for number in range(runs):
        reserve(bare, f"run-{number}", odd)
    with pytest.raises(UseError, match="reserved for what is known by its own"):
        reserve(bare, "one-more", odd)


# Runs that end before their plan.


def test_invariant_8_a_run_that_its_outputs_may_have_stopped_costs_its_whole_plan(ledger):
    write(ledger, "run run")
    settle(ledger, "run", early=True)
    (cost,) = ledger.history().costs(FILTER).values()
    assert cost == FILTER.of_steps(PLAN.mechanism)
    with pytest.raises(UseError, match="its steps are over"):
        ledger.append(Open(run_id="run", attempts=0, nonce="n"))


def test_without_a_filter_the_whole_plan_is_charged_and_claimed(bare):
    write(bare, "run run")
    settle(bare, "run", early=True)
    assert told(bare).guarantee.epsilon == PRICE.epsilon
    assert told(bare).complete


# What is left, and what it buys.


def test_a_filter_buys_runs_as_long_as_it_has_room(ledger):
    write(ledger, "run one")
    seen, one = overview(ledger.history()), FILTER.of_steps(PLAN.mechanism).rho
    assert seen["buys"]["runs"] == int(FILTER.capacity / one) - 1
    assert seen["spent"] == pytest.approx(one / FILTER.capacity)


def test_a_filter_buys_runs_as_long_as_its_reserve_of_delta_lasts(bare):
    """Of runs that it knows by their (epsilon, delta) only, each takes its delta whole."""
    plan = els_plan(fixed_graph=True)
    opened = RenyiFilter.opened(epsilon=30.0, delta=7 * plan.guarantee().delta, reserved=0.5)
    bare.append(OpenBudget(run_id="b", filter=opened))
    reserve(bare, "one", plan, logged=False)
    like = bare.history().costs(opened)["one"]
    assert opened.capacity // like.rho > 3, "or the reserve would not be what ends"
    assert overview(bare.history())["buys"]["runs"] == 2
