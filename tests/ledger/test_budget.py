"""A store's budget with a filter: opened before anything; what it admits; what is claimed."""

from __future__ import annotations

import json

import pytest

from tests.ledgers import query, reserve, settle
from tests.plans import changed_plan, els_plan, uls_plan
from userdp.accounting.filters import RenyiFilter
from userdp.accounting.private_selection import TruncatedNegativeBinomial
from userdp.claims import claim
from userdp.claims.lineage import inherited
from userdp.claims.parts import ConditionKind
from userdp.errors import UseError
from userdp.ledger import History, StoreLedger
from userdp.ledger.budget import overview
from userdp.ledger.lines import BeginTuning, Declare, OpenBudget, Selection, Total
from userdp.ledger.store import new_id
from userdp.plans import PrivateSelection
from userdp.sampling import FixedSizeUsers

PLAN = uls_plan()
FILTER = RenyiFilter.opened(epsilon=8.0, delta=1e-5)


@pytest.fixture
def ledger(tmp_path):
    ledger = StoreLedger(tmp_path)
    ledger.append(OpenBudget(run_id=new_id(), filter=FILTER))
    return ledger


def fill(ledger, plan=PLAN, most=50):
    """Charge runs of a plan until one is refused; how many were taken."""
    for number in range(most):
        try:
            reserve(ledger, f"run-{number}", plan, logged=False)
        except UseError:
            return number
    raise AssertionError("nothing was ever refused")


def test_the_whole_budget_is_claimed_from_the_first_charge(ledger):
    reserve(ledger, "run", PLAN, logged=False)
    told = claim(ledger.path.parent)
    assert (told.guarantee.epsilon, told.guarantee.delta) == (8.0, 1e-5)
    assert told.guarantee.accountant == "renyi-filter"
    assert told.standing == "guarantee"
    assert told.conditions == ()
    assert "fixed before its first use" in told.composition
    query(ledger, "q", name="users", pure_epsilon=0.5)
    assert claim(ledger.path.parent).guarantee == told.guarantee


def test_more_runs_fit_than_by_adding_up_and_the_next_one_is_refused(ledger):
    loud = changed_plan(PLAN, noise_multiplier=1.2)
    taken = fill(ledger, loud)
    assert taken >= 2 * int(8.0 / loud.guarantee().epsilon) > 0
    before = ledger.path.read_bytes()
    with pytest.raises(UseError, match=r"beyond its budget of epsilon 8 .* needs .* % .* is left"):
        reserve(ledger, "one-more", loud)
    assert ledger.path.read_bytes() == before, "what was refused left nothing"
    assert claim(ledger.path.parent).guarantee.epsilon == 8.0


def test_every_later_run_inherits_the_budget_and_nothing_beside_it(ledger):
    query(ledger, "q", name="users", pure_epsilon=0.25)
    reserve(ledger, "first", PLAN, logged=False)
    reserve(ledger, "second", PLAN, logged=False)
    lineage = inherited(ledger.history(), "second", "constants")
    assert [part.id for part in lineage.parts] == [ledger.history().budget.id]
    assert lineage.fixed
    assert lineage.conditions == ()


def test_exact_looks_before_a_charge_make_the_claim_conditional(ledger):
    reserve(ledger, "first", PLAN, logged=False)
    ledger.look("stats")
    assert claim(ledger.path.parent).conditions == (), "nothing was charged after it"
    reserve(ledger, "second", PLAN)
    reserve(ledger, "third", PLAN)
    [condition] = claim(ledger.path.parent).conditions
    assert condition.kind is ConditionKind.LOOKS
    assert condition.told == "stats, train"


@pytest.mark.parametrize(
    "before",
    [
        lambda ledger: ledger.look("stats"),
        lambda ledger: reserve(ledger, "run", PLAN),
        lambda ledger: query(ledger, "q", name="users", pure_epsilon=0.1),
        lambda ledger: ledger.append(BeginTuning(run_id="s", constants=("constants",))),
        lambda ledger: ledger.append(Total(epsilon=3.0, delta=1e-5)),
        lambda ledger: ledger.append(
            OpenBudget(run_id=new_id(), filter=RenyiFilter.opened(epsilon=1.0, delta=1e-5))
        ),
    ],
    ids=["look", "run", "query", "tuning", "total", "budget"],
)
def test_a_budget_is_fixed_before_anything_else(tmp_path, before):
    ledger = StoreLedger(tmp_path)
    before(ledger)
    kept = ledger.path.read_bytes()
    with pytest.raises(UseError, match=r"after a\s+look bounds nothing"):
        ledger.append(OpenBudget(run_id=new_id(), filter=FILTER))
    assert ledger.path.read_bytes() == kept


def test_the_delta_of_a_fixed_total_is_known_to_whoever_plans_a_run(ledger, tmp_path):
    assert ledger.history().total_delta == FILTER.delta
    (tmp_path / "other").mkdir()
    other = StoreLedger(tmp_path / "other")
    assert other.history().total_delta == 0
    other.append(Total(epsilon=3.0, delta=1e-6))
    assert other.history().total_delta == 1e-6


def test_what_was_declared_before_a_budget_is_no_look(tmp_path):
    ledger = StoreLedger(tmp_path)
    ledger.append(Declare(constants="constants"))
    ledger.append(OpenBudget(run_id=new_id(), filter=FILTER))
    assert ledger.history().budget.filter == FILTER


def test_training_without_privacy_is_refused_under_a_budget(ledger):
    with pytest.raises(UseError, match="worth nothing"):
        reserve(ledger, "plain", None)


def test_fixed_size_draws_take_of_the_reserve(tmp_path):
    odd = changed_plan(
        PLAN, sampling=FixedSizeUsers(group_size=4, batch_size=10, least_population=90)
    )
    odd = changed_plan(odd, noise_multiplier=8.0, target_delta=1e-6)
    without = StoreLedger(tmp_path / "without")
    (tmp_path / "without").mkdir()
    without.append(OpenBudget(run_id=new_id(), filter=FILTER))
    with pytest.raises(UseError, match="reserved for what is known by its own"):
        reserve(without, "run", odd)
    (tmp_path / "reserving").mkdir()
    reserving = StoreLedger(tmp_path / "reserving")
    reserving.append(
        OpenBudget(
            run_id=new_id(), filter=RenyiFilter.opened(epsilon=8.0, delta=1e-5, reserved=0.25)
        )
    )
    for number in range(2):
        reserve(reserving, f"run-{number}", odd)
    with pytest.raises(UseError, match="reserved for what is known by its own"):
        reserve(reserving, "third", odd)


def test_runs_of_other_neighbours_are_refused(ledger):
    reserve(ledger, "one", PLAN)
    with pytest.raises(UseError, match="different adjacencies"):
        reserve(ledger, "other", els_plan(fixed_graph=True))


def test_a_private_selection_costs_its_own_divergence(ledger):
    law = TruncatedNegativeBinomial.of_mean(4, eta=0.0)
    chosen = PrivateSelection(plans=(PLAN,), score_epsilon=0.2, repetitions=law)
    ledger.append(Selection(run_id="tuning", selection=chosen))
    spent = ledger.history().charges["tuning"].cost(FILTER)
    single = FILTER.of_steps(PLAN.mechanism)
    assert single.rho + FILTER.of_query(0.2).rho < spent.rho < FILTER.capacity
    assert spent.steps == pytest.approx(4 * PLAN.steps, rel=1e-6)


# Runs that end before their plan.


def stopped(ledger, attempts=2):
    """Settle the run early; why it then costs its whole plan."""
    why = ledger.history().why_whole("run")
    settle(ledger, "run", steps=attempts, early=True)
    counted = ledger.history().charges["run"].stopped
    assert counted == (attempts if why is None else None)
    return why


def halted(ledger, attempts=2):
    reserve(ledger, "run", PLAN, logged=False)
    return stopped(ledger, attempts)


def spent(ledger):
    history = ledger.history()
    return FILTER.spent(charge.cost(FILTER) for charge in history.charges.values())


def test_a_run_that_outputs_stopped_costs_its_attempts(ledger):
    assert halted(ledger, attempts=2) is None
    assert spent(ledger) == pytest.approx(FILTER.of_steps(PLAN.mechanism, steps=2).rho)
    with pytest.raises(UseError, match="its steps are over"):
        ledger.history().require_last("run", [])


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (lambda ledger: ledger.look("stats"), "stats"),
        (lambda ledger: reserve(ledger, "other", PLAN), "train"),
        (
            lambda ledger: reserve(ledger, "again", PLAN, again="run", logged=False),
            "more than once",
        ),
    ],
    ids=["look", "another run's log", "charged again"],
)
def test_a_run_that_an_exact_look_may_have_stopped_costs_its_whole_plan(ledger, prepare, why):
    reserve(ledger, "run", PLAN, logged=False)
    prepare(ledger)
    before = spent(ledger)
    assert why in stopped(ledger)
    assert spent(ledger) == before


def test_a_look_after_the_end_changes_nothing(ledger):
    halted(ledger)
    before = spent(ledger)
    ledger.look("stats")
    assert spent(ledger) == before


def test_a_run_that_kept_a_log_costs_its_whole_plan(ledger):
    reserve(ledger, "run", PLAN)
    assert "train" in stopped(ledger)


def test_without_a_filter_the_whole_plan_is_charged_and_claimed(tmp_path):
    ledger = StoreLedger(tmp_path)
    assert "no budget with a filter" in halted(ledger)
    assert claim(tmp_path).guarantee.epsilon == PLAN.guarantee().epsilon
    assert claim(tmp_path).complete


def test_twin_giving_steps_back_after_a_look_is_caught(ledger, monkeypatch):
    """Were looks forgotten, steps would be given back that an exact number may have stopped."""
    reserve(ledger, "run", PLAN, logged=False)
    ledger.look("stats")
    monkeypatch.setattr(History, "why_whole", lambda self, run_id: None)
    stopped(ledger)
    cheaper = spent(ledger)
    monkeypatch.undo()
    assert cheaper < spent(ledger), "reading the same lines again, the whole plan is charged"


def test_no_more_steps_can_be_settled_than_were_planned(ledger):
    reserve(ledger, "run", PLAN, logged=False)
    with pytest.raises(UseError, match="cannot settle"):
        settle(ledger, "run", steps=PLAN.steps + 1, early=True)
    with pytest.raises(UseError, match="nothing here paid for it"):
        settle(ledger, "nobody", steps=1, early=True)


def test_an_edited_filter_is_noticed(ledger):
    text = ledger.path.read_text().replace("8.0", "4.0", 1)
    reserve(ledger, "run", PLAN)
    lines = ledger.path.read_text().splitlines()
    lines[1] = text.splitlines()[1]
    ledger.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UseError):
        claim(ledger.path.parent)


def test_charges_say_when_they_were_made(ledger):
    reserve(ledger, "run", PLAN)
    history = ledger.history()
    assert history.charges["run"].when.endswith("+00:00")
    entries = [json.loads(line) for line in ledger.path.read_text().splitlines()]
    assert [entry["kind"] for entry in entries] == ["store", "budget", "reserve"]


# What is left, and what it buys.


@pytest.mark.parametrize(("epsilons", "deltas", "runs"), [(4.5, 11, 3), (4.5, 3.2, 2), (2.2, 2, 1)])
def test_a_total_buys_runs_as_long_as_both_epsilon_and_delta_last(tmp_path, epsilons, deltas, runs):
    ledger, own = StoreLedger(tmp_path), PLAN.guarantee()
    ledger.append(Total(epsilon=epsilons * own.epsilon, delta=deltas * own.delta))
    reserve(ledger, "one", PLAN)
    seen = overview(ledger.history())
    assert seen.buys.runs == runs
    assert seen.spent == pytest.approx(1 / epsilons)
    assert (epsilons - 1.01) * own.epsilon < seen.buys.epsilon <= (epsilons - 1) * own.epsilon


def test_a_filter_buys_runs_as_long_as_its_reserve_of_delta_lasts(tmp_path):
    """Of runs that it knows by their (epsilon, delta) only, each takes its delta whole."""
    plan = els_plan(fixed_graph=True)
    delta = plan.guarantee().delta
    opened = RenyiFilter.opened(epsilon=30.0, delta=7 * delta, reserved=0.5)
    ledger = StoreLedger(tmp_path)
    ledger.append(OpenBudget(run_id=new_id(), filter=opened))
    reserve(ledger, "one", plan, logged=False)
    like = ledger.history().charges["one"].cost(opened)
    assert opened.capacity // like.rho > 3, "or the reserve would not be what ends"
    assert overview(ledger.history()).buys.runs == 2
