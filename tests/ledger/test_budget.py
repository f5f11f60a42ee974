"""A store's budget with a filter, what is admitted and claimed."""

from __future__ import annotations

import pytest

from tests.ledger.stories import FILTER, PLAN, PRICE, write
from tests.ledgers import reserve, settle
from tests.plans import changed_plan, els_plan
from userdp.accounting.filters import RenyiFilter
from userdp.claims import claim
from userdp.core.errors import UseError
from userdp.ledger import History, StoreLedger
from userdp.ledger.budget import overview
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
    taken = fill(ledger, loud)
    before = ledger.path.read_bytes()
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


def stopped(ledger, attempts=2):
    """Settle the run early; why it then costs its whole plan."""
    history = settle(ledger, "run", steps=attempts, early=True, copied=ledger.history().copied)
    why = history.why_whole(history.settled["run"])
    counted = history.stopped_at(history.charges["run"])
    assert counted == (attempts if why is None else None)
    return why


def spent(ledger):
    return FILTER.spent(ledger.history().costs(FILTER).values())


def test_a_run_that_outputs_stopped_costs_its_attempts_whatever_is_looked_at_later(ledger):
    write(ledger, "run run")
    assert stopped(ledger) is None
    own = pytest.approx(FILTER.of_steps(PLAN.mechanism, steps=2).rho)
    assert spent(ledger) == own
    write(ledger, "look stats")
    assert spent(ledger) == own
    with pytest.raises(UseError, match="its steps are over"):
        ledger.append(Open(run_id="run", attempts=0, nonce="n"))


WHOLE = {
    "run run; look stats": "stats",
    "run run; run other logged": "train",
    "run run logged": "train",
}


@pytest.mark.parametrize("story", WHOLE)
def test_a_run_that_an_exact_look_may_have_stopped_costs_its_whole_plan(ledger, story):
    write(ledger, story)
    before = spent(ledger)
    assert WHOLE[story] in stopped(ledger)
    assert spent(ledger) == before


def test_without_a_filter_the_whole_plan_is_charged_and_claimed(bare):
    write(bare, "run run")
    assert "no budget with a filter" in stopped(bare)
    assert told(bare).guarantee.epsilon == PRICE.epsilon
    assert told(bare).complete


def test_twin_giving_steps_back_after_a_look_is_caught(ledger, monkeypatch):
    """Were looks forgotten, steps would be given back that an exact number may have stopped."""
    write(ledger, "run run; look stats")
    whole = spent(ledger)
    monkeypatch.setattr(History, "why_whole", lambda history, ended: None)
    stopped(ledger)
    assert spent(ledger) < whole


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
