"""A store's claim says every condition that the claims of what was charged in it rest on."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.ledgers import query, reserve, settle
from tests.plans import uls_plan
from userdp.accounting.filters import RenyiFilter
from userdp.accounting.private_selection import TruncatedNegativeBinomial
from userdp.claims import claim
from userdp.claims import claims as claims_module
from userdp.claims.claims import store_claim
from userdp.claims.lineage import Lineage, inherited
from userdp.claims.parts import Condition, ConditionKind, Steps
from userdp.ledger import StoreLedger
from userdp.ledger.lines import (
    BeginTuning,
    Declare,
    DeclareSeries,
    OpenBudget,
    Release,
    Selection,
    Slots,
    Total,
    Trial,
)
from userdp.ledger.store import new_id
from userdp.plans import PrivateSelection, Series
from userdp.plans.origin import NonPrivateLook

PLAN = uls_plan()
LAW = TruncatedNegativeBinomial.of_mean(5, eta=0.0)


@pytest.fixture
def ledger(tmp_path) -> StoreLedger:
    return StoreLedger(tmp_path)


def told(ledger: StoreLedger) -> dict[ConditionKind, str]:
    """What the store's claim rests on; each kind once."""
    conditions = claim(ledger.path.parent).conditions
    kinds = {one.kind: one.told for one in conditions}
    assert len(kinds) == len(conditions)
    return kinds


def run(ledger: StoreLedger, name: str, plan=PLAN, **options) -> None:
    reserve(ledger, name, plan, **{"constants": f"constants of {name}", "logged": False, **options})


def select(ledger: StoreLedger, plan=PLAN) -> None:
    chosen = PrivateSelection(plans=(plan,), score_epsilon=0.1, repetitions=LAW)
    ledger.append(Selection(run_id="selection", selection=chosen))


def ask(ledger: StoreLedger, name: str = "query") -> None:
    query(ledger, name, name="users", pure_epsilon=0.25)


# Looks.


@pytest.mark.parametrize(
    "charge", [lambda it: run(it, "run"), ask, select], ids=["run", "answer", "selection"]
)
def test_invariant_13_what_is_charged_after_an_exact_look_may_have_been_chosen_by_it(
    ledger, charge
):
    """Plan and options of a run, and also ε and kind of an answer, are constants."""
    ledger.look("stats")
    charge(ledger)
    assert told(ledger) == {ConditionKind.LOOKS: "stats"}


@pytest.mark.parametrize("charge", [lambda it: run(it, "run"), ask], ids=["run", "answer"])
def test_what_was_charged_before_a_look_was_not(ledger, charge):
    charge(ledger)
    ledger.look("stats")
    assert told(ledger) == {}


def test_constants_that_were_declared_before_a_look_were_not_chosen_by_it(ledger):
    ledger.append(Declare(constants="constants of run"))
    ledger.look("stats")
    run(ledger, "run")
    assert told(ledger) == {}
    run(ledger, "again", again="run", constants="constants of run")
    assert told(ledger) == {ConditionKind.LOOKS: "stats"}, "a second run of them is a choice"


def test_an_answer_after_a_run_that_kept_exact_losses_is_conditional(ledger):
    run(ledger, "run", logged=True)
    assert told(ledger) == {}
    ask(ledger)
    assert told(ledger) == {ConditionKind.LOOKS: "train"}


def test_all_looks_are_one_condition_in_words_for_a_store(ledger):
    ledger.look("stats")
    ask(ledger)
    ledger.look("evaluate")
    run(ledger, "run")
    assert told(ledger) == {ConditionKind.LOOKS: "evaluate, stats"}
    words = (
        "provided that nothing that was charged here was chosen by the exact numbers that "
        "evaluate, stats showed its operator before. This is what was spent so far"
    )
    assert words in claim(ledger.path.parent).headline


FILTER = RenyiFilter.opened(epsilon=20.0, delta=1e-5)


@pytest.mark.parametrize("fix", [
    lambda it: it.append(Total(epsilon=30.0, delta=1e-3)),
    lambda it: it.append(OpenBudget(run_id=new_id(), filter=FILTER)),
    lambda it: it.append(DeclareSeries(run_id=new_id(), series=Series(plan=PLAN, runs=2))),
], ids=["total", "filter", "series"])  # fmt: skip
def test_a_total_a_filter_and_a_series_are_a_guarantee_under_the_same_condition(ledger, fix):
    fix(ledger)
    run(ledger, "one")
    assert told(ledger) == {}
    ledger.look("stats")
    assert told(ledger) == {}, "nothing was charged after it"
    run(ledger, "two")
    assert claim(ledger.path.parent).standing == "guarantee"
    assert told(ledger) == {ConditionKind.LOOKS: "stats"}


def test_whether_a_declared_run_takes_place_in_a_filter_must_follow_from_releases_alone(ledger):
    ledger.append(OpenBudget(run_id=new_id(), filter=RenyiFilter.opened(epsilon=20.0, delta=1e-5)))
    ledger.append(Declare(constants="constants of run"))
    ledger.look("stats")
    run(ledger, "run")
    assert told(ledger) == {ConditionKind.LOOKS: "stats"}


# What else the claims of runs rest on.


def from_a_look(plan):
    return replace(plan, origins={**plan.origins, "steps": NonPrivateLook(what="gradient norms")})


@pytest.mark.parametrize(
    "charge", [lambda it, plan: run(it, "run", plan), select], ids=["run", "selection"]
)
def test_invariant_13_a_plan_that_was_made_from_exact_numbers_is_told_for_the_store(ledger, charge):
    charge(ledger, from_a_look(PLAN))
    assert told(ledger) == {ConditionKind.PLAN: "gradient norms"}


def test_what_a_loop_of_somebodys_own_may_have_seen_is_told_for_the_store(ledger):
    run(ledger, "loop", steered=True)
    ledger.look("stats")
    assert told(ledger) == {ConditionKind.LOOKS: "stats"}
    settle(ledger, "loop", steps=PLAN.steps)
    ledger.look("evaluate")
    assert told(ledger) == {ConditionKind.LOOKS: "stats"}, "it had ended before"


@pytest.mark.parametrize("logged", [True, False])
def test_losses_of_another_run_while_a_loop_is_open_are_a_look(ledger, logged):
    run(ledger, "loop", steered=True, logged=True)
    assert told(ledger) == {}, "what a loop keeps of its own steps is no look at others"
    run(ledger, "other", logged=logged, constants="constants of loop 2")
    history = ledger.history()
    looks = history.looked_during(history.charges["loop"])
    assert looks == ({"train"} if logged else frozenset())


def test_a_loop_that_went_on_against_a_further_charge_is_open_since_its_first(ledger):
    run(ledger, "loop", steered=True)
    ledger.look("stats")
    ledger.append(Declare(constants="x"))
    run(ledger, "again", again="loop", steered=True)
    settle(ledger, "loop", steps=PLAN.steps)
    ledger.look("evaluate")
    assert told(ledger) == {ConditionKind.LOOKS: "evaluate, stats"}


def test_what_a_released_models_claim_rests_on_is_told_for_the_store(ledger):
    """The best of several runs by exact losses: the choice is no part of what they were charged."""
    ledger.append(BeginTuning(run_id="sweep", constants=("constants of one", "constants of two")))
    run(ledger, "one")
    run(ledger, "two")
    assert told(ledger) == {}
    chosen = Condition(kind=ConditionKind.LOOKS, told="sweep")
    ledger.append(Release(run_id="sweep", weights="w", lineage=Lineage(conditions=(chosen,)).plain))
    assert told(ledger) == {ConditionKind.LOOKS: "sweep"}


def test_a_person_who_joined_later_has_the_conditions_of_what_came_later(ledger):
    rests = Condition(kind=ConditionKind.EVALUATION, told="eval_dataset")
    run(ledger, "early", from_a_look(PLAN))
    settle(ledger, "early", steps=5, weights="w", lineage=Lineage(conditions=(rests,)).plain)
    run(ledger, "late")
    history = ledger.history()
    later = store_claim(replace(history, charges={"late": history.charges["late"]}))
    assert later.conditions == ()
    assert set(told(ledger)) == {ConditionKind.PLAN, ConditionKind.EVALUATION}


# All of it at once, against the runs' own claims.


def life(ledger: StoreLedger, draw: random.Random) -> set[str]:
    """Plays a random life; what the claims of all that was charged rest on, as it went along."""
    seen: set[str] = set()
    looked: set[str] = set()
    for number in range(draw.randrange(3, 12)):
        step = draw.choice(["look", "declare", "run", "run declared", "ask"])
        if step == "look":
            what = draw.choice(["stats", "probe", "evaluate"])
            ledger.look(what)
            looked.add(what)
        elif step == "declare":
            ledger.append(Declare(constants=f"declared {number}"))
        elif step == "ask":
            ask(ledger, f"query {number}")
            seen |= looked  # by hand: an answer's epsilon is as old as its charge
        else:
            declared = [*ledger.history().declared, "none"]
            constants = draw.choice(declared) if step == "run declared" else f"new {number}"
            logged = draw.random() < 0.5
            run(ledger, f"run {number}", constants=constants, logged=logged)
            own = inherited(ledger.history(), f"run {number}", constants)
            seen |= {name for one in own.conditions for name in one.told.split(", ")}
            looked |= {"train"} if logged else set()
    return seen


@pytest.mark.parametrize("seed", range(12))
def test_invariant_13_a_stores_claim_rests_on_what_the_claims_of_its_runs_rest_on(tmp_path, seed):
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        ledger = StoreLedger(tmp_path / str(number))
        expected = life(ledger, random.Random(100 * seed + number))
        if ledger.history().charges:
            names = told(ledger).get(ConditionKind.LOOKS, "")
            assert {name for name in names.split(", ") if name} == expected


def test_broken_twin_a_total_without_the_conditions_of_its_runs_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(claims_module, "store_conditions", lambda history, parts: ())
    wrong = 0
    for number in range(12):
        (tmp_path / str(number)).mkdir()
        ledger = StoreLedger(tmp_path / str(number))
        expected = life(ledger, random.Random(number))
        wrong += bool(expected) and told(ledger) == {}
    assert wrong > 3


# What the models of runs had learned before.

BASE = Lineage(parts=(Steps(id="before", plan=PLAN),))


def test_invariant_13_a_store_pays_for_what_the_base_model_of_its_run_had_learned(ledger):
    run(ledger, "run", base=BASE.plain)
    whole = claim(ledger.path.parent)
    assert {part.id for part in whole.parts} == {"run", "before"}
    assert whole.guarantee.epsilon == pytest.approx(2 * PLAN.guarantee().epsilon)


def test_invariant_13_a_store_pays_for_what_the_base_models_of_a_sweeps_trials_had_learned(ledger):
    select(ledger)
    ledger.append(Slots(run_id="selection", slots={"slot": "constants"})).slots["selection"]
    alone = claim(ledger.path.parent).guarantee.epsilon
    ledger.append(
        Trial(slot="slot", run_id="trial", base=BASE.plain),
        require=lambda history: history.require_slot("slot", "constants"),
    )
    whole = claim(ledger.path.parent)
    assert {part.id for part in whole.parts} == {"selection", "before"}
    assert whole.guarantee.epsilon == pytest.approx(alone + PLAN.guarantee().epsilon)
