"""What a store's ledger refuses, what its claim rests on, and what a run inherits: as stories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.ledger.stories import (
    FILTER,
    LAW,
    MEASURED,
    PLAN,
    PRICE,
    SELECTION,
    inherits,
    parts,
    run,
    select,
    told,
    write,
)
from tests.ledgers import reserve, settle
from userdp.claims import claim
from userdp.claims import claims as claims_module
from userdp.claims.claims import store_claim
from userdp.claims.lineage import Condition, ConditionKind, Lineage
from userdp.core.errors import UseError
from userdp.ledger import StoreLedger
from userdp.ledger.charged_parts import Steps
from userdp.ledger.lines import Answer, Open, Release, Trial
from userdp.ledger.store_history import History


@pytest.fixture
def ledger(tmp_path) -> StoreLedger:
    return StoreLedger(tmp_path)


REFUSED = {
    **{f"{before}; filter": r"after a\s+look bounds nothing"
       for before in ("look stats", "run one", "ask", "tuning a", "filter")},
    "filter; plain": "has no epsilon",
    "filter; run one; graph": "different adjacencies",
    "run one; settle two": "paid for",
    "ask; release s": "paid for s",
    "tuning a b; tuning a c": "base model is not the one",
}  # fmt: skip


@pytest.mark.parametrize("story", REFUSED)
def test_what_may_not_follow_is_refused_and_leaves_nothing(ledger, story):
    before, last = story.rsplit("; ", 1)
    write(ledger, before)
    kept = ledger.path.read_bytes()
    with pytest.raises(UseError, match=REFUSED[story]):
        write(ledger, last)
    assert ledger.path.read_bytes() == kept


@pytest.mark.pitfall(number=46)
def test_broken_twin_without_a_total_prices_are_only_what_was_spent_so_far(ledger):
    write(ledger, "run one; run two")
    assert claim(ledger.path).standing == "spent so far"


# What the claim of a store rests on.

CONDITIONS = {
    # An ε and a kind of an answer are constants too.
    "look stats; run one": "stats",
    "look stats; ask": "stats",
    "look stats; select": "stats",
    "run one; look stats": "",
    "ask; look stats": "",
    "run one logged": "",
    "run one logged; ask": "train",
    "look stats; ask; look evaluate; run one": "evaluate, stats",
    "filter; look stats; run one": "stats",
    "filter; run one; look stats; run two logged; run three": "stats, train",
    "filter; run one; look stats": "",
    # What a loop of somebody's own may have seen while it was open.
    "run loop steered; look stats": "stats",
    "run loop steered; look stats; settle loop; look evaluate": "stats",
    "run loop steered logged": "",
    "run loop steered; run other logged of x": "train",
}  # fmt: skip


@pytest.mark.parametrize("story", CONDITIONS)
def test_invariant_13_what_may_have_been_chosen_by_an_exact_look_says_so(ledger, story):
    write(ledger, story)
    looks = {"exact-looks": CONDITIONS[story]} if CONDITIONS[story] else {}
    assert told(ledger) == looks
    if story.startswith("filter"):
        assert claim(ledger.path.parent).standing == "guarantee"


def test_broken_twin_a_total_without_the_conditions_of_its_runs_is_caught(ledger, monkeypatch):
    monkeypatch.setattr(claims_module, "store_conditions", lambda history: ())
    write(ledger, "look stats; run one")
    assert told(ledger) == {}


@pytest.mark.parametrize("story", ["run one measured", "select measured"])
def test_invariant_13_a_plan_that_was_made_from_exact_numbers_is_told_for_the_store(ledger, story):
    write(ledger, story)
    assert told(ledger) == {str(ConditionKind.PLAN): "gradient norms"}


def test_what_a_released_models_claim_rests_on_is_told_for_the_store(ledger):
    """The best of several runs by exact losses: the choice is no part of what they were charged."""
    write(ledger, "tuning a b; run one of a; run two of b")
    assert told(ledger) == {}
    chosen = Condition(kind=ConditionKind.LOOKS, told="sweep")
    ledger.append(Release(run_id="t", weights="w", lineage=Lineage(conditions=(chosen,)).plain))
    assert told(ledger) == {str(ConditionKind.LOOKS): "sweep"}


def test_a_person_who_joined_later_has_the_conditions_of_what_came_later(ledger):
    rests = Condition(kind=ConditionKind.EVALUATION, told="eval_dataset")
    reserve(ledger, "early", MEASURED, logged=False)
    settle(ledger, "early", weights="w", lineage=Lineage(conditions=(rests,)).plain)
    run(ledger, "late")
    history = ledger.history()
    assert store_claim(replace(history, charges={"late": history.charges["late"]})).conditions == ()
    assert set(told(ledger)) == {ConditionKind.PLAN, ConditionKind.EVALUATION}


# What a run descends from.

INHERITED = {
    "look stats; look evaluate; look stats; run r": ("", "evaluate, stats"),
    "run r; look stats": ("", ""),
    "ask; run one logged": ("q", ""),  # a DP answer is paid for
    "ask; run one logged; run r": ("q one", "train"),
    "plain; run r": ("", "train"),
    "filter; ask; run one; run r": ("budget", ""),
    "look stats; ask; run r": ("q", "stats"),
}


@pytest.mark.parametrize("story", INHERITED)
def test_invariant_13_a_run_inherits_what_its_constants_may_have_followed(ledger, story):
    write(ledger, story)
    assert inherits(ledger) == INHERITED[story]


BASE = Lineage(parts=(Steps(id="before", plan=PLAN),))


def test_invariant_13_a_store_pays_once_for_what_the_base_models_of_its_runs_had_learned(ledger):
    for name in ("one", "two"):
        reserve(ledger, name, PLAN, base=BASE.plain)
    assert set(parts(ledger).split()) == {"one", "two", "before"}
    assert claim(ledger.path).guarantee.epsilon == pytest.approx(3 * PRICE.epsilon)


# A selection and its slots.


@pytest.fixture
def selecting(ledger):
    select(ledger, "a", "b")
    return ledger


def take(ledger, slot, trial, constants="constants", base=None):
    ledger.append(Trial(run_id=trial, slot=slot, constants=constants, base=base or {}))


def test_slots_are_drawn_once(selecting):
    before = selecting.path.read_bytes()
    assert select(selecting, "c").tunings["s"][1].slots == {"a": "constants", "b": "constants"}
    assert selecting.path.read_bytes() == before


def test_invariant_1_a_slot_is_taken_once_and_by_its_own_constants(selecting):
    for slot, constants in (("c", "constants"), ("a", "others")):
        with pytest.raises(UseError, match="pays for this trial"):
            take(selecting, slot, "t", constants)
    take(selecting, "a", "t")
    lines = selecting.path.read_bytes()
    take(selecting, "a", "t")
    assert selecting.path.read_bytes() == lines, "a trial that goes on takes nothing more"
    with pytest.raises(UseError, match="pays for this trial"):
        take(selecting, "a", "again")
    take(selecting, "b", "u")
    for delta in (None, 1e-7):
        priced = SELECTION.guarantee() if delta is None else SELECTION.guarantee(delta=delta)
        assert claim(selecting.path, delta=delta).guarantee == priced
    run(selecting, "one")
    whole = SELECTION.guarantee().epsilon + PRICE.epsilon
    assert claim(selecting.path).guarantee.epsilon == pytest.approx(whole)


def test_invariant_13_a_store_pays_once_for_what_the_base_models_of_trials_had_learned(selecting):
    for slot in ("a", "b"):
        take(selecting, slot, f"trial {slot}", base=BASE.plain)
    assert set(parts(selecting).split()) == {"s", "before"}
    whole = SELECTION.guarantee().epsilon + PRICE.epsilon
    assert claim(selecting.path).guarantee.epsilon == pytest.approx(whole)


def test_broken_twin_a_slot_that_nobody_remembers_is_taken_twice(selecting, monkeypatch):
    monkeypatch.setattr(History, "trials", {})
    for trial in ("t", "again"):
        take(selecting, "a", trial)


def test_invariant_1_the_score_of_a_trial_is_drawn_once(selecting):
    """Scores that could be drawn again would choose as often as one likes for one price."""
    take(selecting, "a", "t")
    for drawn in (1.5, 2.5):
        assert selecting.append(Answer(run_id="t", value=drawn)).answers["t"] == 1.5
    with pytest.raises(UseError, match="paid for"):
        selecting.append(Answer(run_id="nobody", value=0.0))


def test_a_trial_is_settled_and_opened_under_its_selection_whose_word_on_weights_is_the_last(
    selecting,
):
    def begin(nonce, attempts, after=""):
        selecting.append(Open(run_id="t", nonce=nonce, attempts=attempts, after=after))

    with pytest.raises(UseError, match="paid for"):
        settle(selecting, "t")
    take(selecting, "a", "t")
    begin("n", 0)
    settle(selecting, "t", weights="w", lineage={"of": "the trial"})
    with pytest.raises(UseError, match="was finished"):
        begin("m", 5, "n")
    selecting.append(Release(run_id="s", weights="w", lineage={"of": "the choice"}))
    (released,) = selecting.history().released
    assert (released.weights, released.lineage["of"]) == ("w", "the choice")


def test_a_private_selection_costs_its_own_divergence_in_a_filter(ledger):
    write(ledger, "filter; select")
    spent = ledger.history().costs(FILTER)["s"]
    single = FILTER.of_steps(PLAN.mechanism)
    assert single.rho + FILTER.of_guarantee(0.1, 0.0).rho < spent.rho < FILTER.capacity
    assert spent.steps == pytest.approx(LAW.mean * PLAN.steps, rel=1e-6)
