"""What a store's ledger holds besides charges: looks, declared constants, slots and a total."""

import math

import pytest

from tests.ledgers import begun
from tests.plans import els_plan, uls_plan
from userdp.accounting.private_selection import TruncatedNegativeBinomial
from userdp.claims import claim
from userdp.claims.lineage import inherited
from userdp.claims.parts import ConditionKind
from userdp.errors import FailureError, UseError
from userdp.ledger import StoreLedger
from userdp.ledger.lines import Trial
from userdp.plans import PrivateSelection

PLAN = uls_plan()
PRICE = PLAN.guarantee()


@pytest.fixture
def ledger(tmp_path):
    return StoreLedger(tmp_path)


def of_run(ledger, run_id="run", constants="constants"):
    """What a run that is charged now inherits."""
    ledger.reserve(run_id, PLAN)
    return inherited(ledger.history(), run_id, constants)


def looks(lineage):
    return [c.told for c in lineage.conditions if c.kind is ConditionKind.LOOKS]


# Looks, and what was declared before them.


def test_invariant_13_a_run_after_a_look_says_so(ledger):
    ledger.look("stats")
    ledger.look("evaluate")
    ledger.look("stats")
    lineage = of_run(ledger)
    assert looks(lineage) == ["evaluate, stats"]
    assert lineage.parts == ()


def test_a_run_before_a_look_does_not(ledger):
    lineage = of_run(ledger)
    ledger.look("stats")
    assert looks(lineage) == []
    assert looks(inherited(ledger.history(), "run", "constants")) == []


def test_a_later_run_inherits_what_was_released_before(ledger):
    ledger.query("q", name="users", pure_epsilon=0.25)
    assert looks(of_run(ledger, "first")) == [], "a DP answer is paid for"
    later = of_run(ledger, "second")
    assert [part.id for part in later.parts] == ["q", "first"]
    assert looks(later) == ["train"], "training shows its operator losses and times"
    assert not later.fixed


def test_a_run_without_privacy_before_is_a_look_and_no_part(ledger):
    ledger.reserve("plain", None)
    later = of_run(ledger)
    assert later.parts == ()
    assert looks(later) == ["train"]


def test_constants_that_were_declared_before_inherit_nothing_later(ledger):
    ledger.query("q", name="users", pure_epsilon=0.25)
    ledger.declare("constants")
    ledger.look("stats")
    ledger.reserve("earlier", PLAN)
    lineage = of_run(ledger)
    assert [part.id for part in lineage.parts] == ["q"]
    assert looks(lineage) == []
    assert looks(of_run(ledger, "other", constants="others")) == ["stats, train"]


def test_what_is_declared_twice_is_as_old_as_the_first_time(ledger):
    ledger.declare("constants")
    lines = ledger.path.read_bytes()
    ledger.declare("constants")
    assert ledger.path.read_bytes() == lines
    ledger.look("stats")
    ledger.declare("constants")
    assert looks(of_run(ledger)) == []


def test_broken_twin_what_is_declared_after_a_look_is_not_older(ledger):
    ledger.look("stats")
    ledger.declare("constants")
    assert looks(of_run(ledger)) == ["stats"]


# Slots.

LAW = TruncatedNegativeBinomial.of_mean(5, eta=0.0)
SELECTION = PrivateSelection(plans=(PLAN,), score_epsilon=0.1, repetitions=LAW)


@pytest.fixture
def selecting(ledger):
    ledger.reserve_selection("s", SELECTION)
    return ledger


def test_slots_are_drawn_once(selecting):
    first = selecting.slots("s", lambda: {"a": "constants", "b": "constants"})
    again = selecting.slots("s", lambda: pytest.fail("a second draw is a choice"))
    assert first == again == {"a": "constants", "b": "constants"}


def test_no_slots_without_a_selection(ledger, selecting):
    with pytest.raises(UseError, match="no selection other"):
        ledger.slots("other", lambda: {"a": "constants"})


def test_invariant_1_a_slot_is_taken_once_and_by_its_own_constants(selecting):
    selecting.slots("s", lambda: {"a": "constants", "b": "constants"})
    for slot, plan, constants in (
        ("c", PLAN, "constants"),
        ("a", PLAN, "others"),
        ("a", els_plan(), "constants"),
    ):
        with pytest.raises(UseError, match="pays for this trial"):
            selecting.take_slot(slot, "t", plan, constants=constants, base={})
    selecting.take_slot("a", "t", PLAN, constants="constants", base={})
    lines = selecting.path.read_bytes()
    selecting.take_slot("a", "t", PLAN, constants="constants", base={})
    assert selecting.path.read_bytes() == lines, "a trial that goes on takes nothing more"
    with pytest.raises(UseError, match="taken before"):
        selecting.take_slot("a", "again", PLAN, constants="constants", base={})
    selecting.take_slot("b", "u", PLAN, constants="constants", base={})
    assert claim(selecting.path).guarantee == SELECTION.guarantee()


def test_broken_twin_a_slot_that_nobody_remembers_is_taken_twice(selecting, monkeypatch):
    monkeypatch.setattr(Trial, "fold", lambda self, history, at: None)
    selecting.slots("s", lambda: {"a": "constants"})
    for trial in ("t", "again"):
        selecting.take_slot("a", trial, PLAN, constants="constants", base={})


def test_invariant_1_the_score_of_a_trial_is_drawn_once(selecting):
    """Scores that could be drawn again would choose as often as one likes for one price."""
    selecting.slots("s", lambda: {"a": "constants"})
    selecting.take_slot("a", "t", PLAN, constants="constants", base={})
    assert [selecting.score("t", lambda: 1.5), selecting.score("t", lambda: 2.5)] == [1.5, 1.5]
    with pytest.raises(UseError, match="no trial"):
        selecting.score("nobody", lambda: 0.0)


def test_a_tuning_goes_on_with_the_candidates_that_it_began_with(selecting):
    selecting.begin_tuning("s", ["one", "two"])
    selecting.begin_tuning("s", ["one", "two"])
    with pytest.raises(UseError, match="base model is not the one"):
        selecting.begin_tuning("s", ["one", "three"])


def test_a_trial_is_settled_and_opened_under_its_selection(selecting):
    selecting.slots("s", lambda: {"a": "constants"})
    with pytest.raises(UseError, match="no reservation"):
        selecting.settle("t", steps=5)
    selecting.take_slot("a", "t", PLAN, constants="constants", base={})
    selecting.open("t", known=[], nonce="n", attempts=0)
    selecting.settle("t", steps=5, weights="w", lineage={})
    assert [one.weights for one in selecting.history().released] == ["w"]
    with pytest.raises(UseError, match="was finished"):
        selecting.open("t", known=["n"], nonce="m", attempts=5)


def test_the_last_word_on_weights_is_the_price_of_choosing_them(selecting):
    selecting.slots("s", lambda: {"a": "constants"})
    selecting.take_slot("a", "t", PLAN, constants="constants", base={})
    selecting.settle("t", steps=5, weights="w", lineage={"of": "the trial"})
    selecting.release("s", weights="w", lineage={"of": "the choice"})
    (released,) = selecting.history().released
    assert released.lineage["of"] == "the choice"


# A total that was fixed beforehand.


def test_a_total_is_fixed_before_anything_else(ledger):
    ledger.declare_total(2.5 * PRICE.epsilon, 1e-4)
    ledger.reserve("one", PLAN)
    ledger.reserve("two", PLAN)
    assert claim(ledger.path).standing == "guarantee"
    with pytest.raises(UseError, match="bounds nothing"):
        ledger.declare_total(99.0, 1e-4)


@pytest.mark.parametrize("before", ["charge", "look"])
def test_a_total_after_something_is_refused(ledger, before):
    if before == "charge":
        ledger.reserve("one", PLAN)
    else:
        ledger.look("stats")
    lines = ledger.path.read_bytes()
    with pytest.raises(UseError, match="bounds nothing"):
        ledger.declare_total(2.0, 1e-5)
    assert ledger.path.read_bytes() == lines


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (math.nan, 1e-5), (1.0, 1.5)])
def test_a_total_that_means_nothing_is_refused(ledger, epsilon, delta):
    with pytest.raises(UseError):
        ledger.declare_total(epsilon, delta)
    assert not ledger.path.exists()


def test_invariant_12_what_would_exceed_the_total_is_not_charged(ledger):
    ledger.declare_total(2.2 * PRICE.epsilon, 2.5 * PRICE.delta)
    ledger.reserve("one", PLAN)
    ledger.query("q", name="users", pure_epsilon=0.1 * PRICE.epsilon)
    ledger.reserve("two", PLAN)
    lines = ledger.path.read_bytes()
    for charge in (
        lambda: ledger.reserve("three", PLAN),
        lambda: ledger.reserve("three", None),
        lambda: ledger.query("r", name="users", pure_epsilon=0.11 * PRICE.epsilon),
        lambda: ledger.reserve_selection("s", SELECTION),
    ):
        with pytest.raises(UseError, match="beyond the total"):
            charge()
    assert ledger.path.read_bytes() == lines
    assert claim(ledger.path).guarantee.epsilon <= 2.2 * PRICE.epsilon


def test_invariant_12_a_total_bounds_delta_too(ledger):
    ledger.declare_total(99.0, 1.5 * PRICE.delta)
    ledger.reserve("one", PLAN)
    with pytest.raises(UseError, match="beyond the total"):
        ledger.reserve("two", PLAN)


def test_prices_for_different_neighbours_have_no_total(ledger):
    ledger.declare_total(99.0, 1e-3)
    ledger.reserve("one", PLAN)
    with pytest.raises(UseError, match="different adjacencies"):
        ledger.reserve("two", els_plan(fixed_graph=True))


@pytest.mark.pitfall(number=46)
def test_broken_twin_without_a_total_prices_are_only_what_was_spent_so_far(ledger):
    ledger.reserve("one", PLAN)
    ledger.reserve("two", PLAN)
    assert claim(ledger.path).standing == "spent so far"


# Lines that amend, where nothing was begun.


def test_nothing_is_opened_or_released_where_nothing_was_charged(ledger):
    with pytest.raises(FailureError, match="nothing was ever charged"):
        ledger.release("s", weights="w", lineage={})
    assert not ledger.path.exists()


def test_a_run_ledger_is_no_store_ledger(tmp_path):
    begun(tmp_path / "ledger.jsonl", PLAN).close()
    with pytest.raises(UseError, match="is no ledger of a store"):
        StoreLedger(tmp_path).charges()
