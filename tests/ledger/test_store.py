"""What a store's ledger holds besides charges: looks, declared constants, slots and a total."""

import math

import pytest

from tests.ledgers import begun, query, reserve, settle
from tests.plans import els_plan, uls_plan
from userdp.accounting.private_selection import TruncatedNegativeBinomial
from userdp.claims import claim
from userdp.claims.lineage import inherited
from userdp.claims.parts import ConditionKind
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.ledger.lines import (
    BeginTuning,
    Declare,
    Open,
    Release,
    Score,
    Selection,
    Slots,
    Total,
    Trial,
)
from userdp.plans import PrivateSelection

PLAN = uls_plan()
PRICE = PLAN.guarantee()


@pytest.fixture
def ledger(tmp_path):
    return StoreLedger(tmp_path)


def of_run(ledger, run_id="run", constants="constants"):
    """What a run that is charged now inherits."""
    reserve(ledger, run_id, PLAN)
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
    query(ledger, "q", name="users", pure_epsilon=0.25)
    assert looks(of_run(ledger, "first")) == [], "a DP answer is paid for"
    later = of_run(ledger, "second")
    assert [part.id for part in later.parts] == ["q", "first"]
    assert looks(later) == ["train"], "training shows its operator losses and times"
    assert not later.fixed


def test_a_run_without_privacy_before_is_a_look_and_no_part(ledger):
    reserve(ledger, "plain", None)
    later = of_run(ledger)
    assert later.parts == ()
    assert looks(later) == ["train"]


def test_what_is_declared_twice_is_as_old_as_the_first_time(ledger):
    ledger.append(Declare(constants="constants"))
    lines = ledger.path.read_bytes()
    ledger.append(Declare(constants="constants"))
    assert ledger.path.read_bytes() == lines
    ledger.look("stats")
    ledger.append(Declare(constants="constants"))
    assert looks(of_run(ledger)) == []


# Slots.

LAW = TruncatedNegativeBinomial.of_mean(5, eta=0.0)
SELECTION = PrivateSelection(plans=(PLAN,), score_epsilon=0.1, repetitions=LAW)


@pytest.fixture
def selecting(ledger):
    ledger.append(Selection(run_id="s", selection=SELECTION))
    return ledger


def draw(ledger, slots):
    return ledger.append(Slots(run_id="s", slots=slots)).slots["s"]


def take(ledger, slot, trial, constants="constants"):
    line = Trial(run_id=trial, slot=slot, base={})
    ledger.append(line, require=lambda history: history.require_slot(slot, constants))


def test_slots_are_drawn_once(selecting):
    first = draw(selecting, {"a": "constants", "b": "constants"})
    assert draw(selecting, {"c": "constants"}) == first == {"a": "constants", "b": "constants"}


def test_no_slots_without_a_selection(ledger, selecting):
    with pytest.raises(UseError, match=r"nothing was charged in .* as other"):
        ledger.append(Slots(run_id="other", slots={"a": "constants"}))


def test_invariant_1_a_slot_is_taken_once_and_by_its_own_constants(selecting):
    draw(selecting, {"a": "constants", "b": "constants"})
    for slot, constants in (("c", "constants"), ("a", "others")):
        with pytest.raises(UseError, match="pays for this trial"):
            take(selecting, slot, "t", constants)
    take(selecting, "a", "t")
    lines = selecting.path.read_bytes()
    take(selecting, "a", "t")
    assert selecting.path.read_bytes() == lines, "a trial that goes on takes nothing more"
    with pytest.raises(UseError, match="taken before"):
        take(selecting, "a", "again")
    take(selecting, "b", "u")
    assert claim(selecting.path).guarantee == SELECTION.guarantee()


def test_broken_twin_a_slot_that_nobody_remembers_is_taken_twice(selecting, monkeypatch):
    monkeypatch.setattr(Trial, "fold", lambda self, history, at: None)
    draw(selecting, {"a": "constants"})
    for trial in ("t", "again"):
        take(selecting, "a", trial)


def test_invariant_1_the_score_of_a_trial_is_drawn_once(selecting):
    """Scores that could be drawn again would choose as often as one likes for one price."""
    draw(selecting, {"a": "constants"})
    take(selecting, "a", "t")
    for drawn in (1.5, 2.5):
        assert selecting.append(Score(run_id="t", value=drawn)).scores["t"] == 1.5
    with pytest.raises(UseError, match="no trial"):
        selecting.append(Score(run_id="nobody", value=0.0))


def test_a_tuning_goes_on_with_the_candidates_that_it_began_with(selecting):
    selecting.append(BeginTuning(run_id="s", constants=("one", "two")))
    selecting.append(BeginTuning(run_id="s", constants=("one", "two")))
    with pytest.raises(UseError, match="base model is not the one"):
        selecting.append(BeginTuning(run_id="s", constants=("one", "three")))


def test_a_trial_is_settled_and_opened_under_its_selection(selecting):
    draw(selecting, {"a": "constants"})
    with pytest.raises(UseError, match="no reservation"):
        settle(selecting, "t", steps=5)
    take(selecting, "a", "t")
    selecting.append(
        Open(run_id="t", nonce="n", attempts=0),
        require=lambda history: history.require_last("t", []),
    )
    settle(selecting, "t", steps=5, weights="w", lineage={})
    assert [one.weights for one in selecting.history().released] == ["w"]
    with pytest.raises(UseError, match="was finished"):
        selecting.append(
            Open(run_id="t", nonce="m", attempts=5),
            require=lambda history: history.require_last("t", ["n"]),
        )


def test_the_last_word_on_weights_is_the_price_of_choosing_them(selecting):
    draw(selecting, {"a": "constants"})
    take(selecting, "a", "t")
    settle(selecting, "t", steps=5, weights="w", lineage={"of": "the trial"})
    selecting.append(Release(run_id="s", weights="w", lineage={"of": "the choice"}))
    (released,) = selecting.history().released
    assert released.lineage["of"] == "the choice"


# A total that was fixed beforehand.


def test_a_total_is_fixed_before_anything_else(ledger):
    ledger.append(Total(epsilon=2.5 * PRICE.epsilon, delta=1e-4))
    reserve(ledger, "one", PLAN)
    reserve(ledger, "two", PLAN)
    assert claim(ledger.path).standing == "guarantee"
    with pytest.raises(UseError, match="bounds nothing"):
        ledger.append(Total(epsilon=99.0, delta=1e-4))


@pytest.mark.parametrize("before", ["charge", "look"])
def test_a_total_after_something_is_refused(ledger, before):
    if before == "charge":
        reserve(ledger, "one", PLAN)
    else:
        ledger.look("stats")
    lines = ledger.path.read_bytes()
    with pytest.raises(UseError, match="bounds nothing"):
        ledger.append(Total(epsilon=2.0, delta=1e-5))
    assert ledger.path.read_bytes() == lines


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (math.nan, 1e-5), (1.0, 1.5)])
def test_a_total_that_means_nothing_is_refused(ledger, epsilon, delta):
    with pytest.raises(UseError):
        ledger.append(Total(epsilon=epsilon, delta=delta))
    assert not ledger.path.exists()


def test_invariant_12_what_would_exceed_the_total_is_not_charged(ledger):
    ledger.append(Total(epsilon=2.2 * PRICE.epsilon, delta=2.5 * PRICE.delta))
    reserve(ledger, "one", PLAN)
    query(ledger, "q", name="users", pure_epsilon=0.1 * PRICE.epsilon)
    reserve(ledger, "two", PLAN)
    lines = ledger.path.read_bytes()
    for charge in (
        lambda: reserve(ledger, "three", PLAN),
        lambda: reserve(ledger, "three", None),
        lambda: query(ledger, "r", name="users", pure_epsilon=0.11 * PRICE.epsilon),
        lambda: ledger.append(Selection(run_id="s", selection=SELECTION)),
    ):
        with pytest.raises(UseError, match="beyond the total"):
            charge()
    assert ledger.path.read_bytes() == lines
    assert claim(ledger.path).guarantee.epsilon <= 2.2 * PRICE.epsilon


def test_invariant_12_a_total_bounds_delta_too(ledger):
    ledger.append(Total(epsilon=99.0, delta=1.5 * PRICE.delta))
    reserve(ledger, "one", PLAN)
    with pytest.raises(UseError, match="beyond the total"):
        reserve(ledger, "two", PLAN)


def test_prices_for_different_neighbours_have_no_total(ledger):
    ledger.append(Total(epsilon=99.0, delta=1e-3))
    reserve(ledger, "one", PLAN)
    with pytest.raises(UseError, match="different adjacencies"):
        reserve(ledger, "two", els_plan(fixed_graph=True))


@pytest.mark.pitfall(number=46)
def test_broken_twin_without_a_total_prices_are_only_what_was_spent_so_far(ledger):
    reserve(ledger, "one", PLAN)
    reserve(ledger, "two", PLAN)
    assert claim(ledger.path).standing == "spent so far"


# Lines that amend, where nothing was begun.


def test_nothing_is_opened_or_released_where_nothing_was_charged(ledger):
    with pytest.raises(UseError, match="nothing here paid for it"):
        ledger.append(Release(run_id="s", weights="w", lineage={}))
    assert not ledger.path.exists()


def test_a_run_ledger_is_no_store_ledger(tmp_path):
    begun(tmp_path / "ledger.jsonl", PLAN).close()
    with pytest.raises(UseError, match="is no ledger of a store"):
        StoreLedger(tmp_path).charges()
