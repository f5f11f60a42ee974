"""A declared series of runs: one price for all of them, fixed before the first."""

from __future__ import annotations

import pytest

from tests.ledgers import query, reserve
from tests.plans import changed_plan, els_plan, uls_plan
from userdp.accounting.accountants import Accountant
from userdp.accounting.filters import RenyiFilter
from userdp.claims import claim
from userdp.claims.lineage import inherited
from userdp.claims.parts import ConditionKind, OfSeries
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.ledger.lines import DeclareSeries, OpenBudget, Total
from userdp.ledger.store import new_id
from userdp.plans import Series

PLAN = uls_plan()
SERIES = Series(plan=PLAN, runs=3)
PRICE = SERIES.guarantee()


@pytest.fixture
def ledger(tmp_path):
    ledger = StoreLedger(tmp_path)
    ledger.append(DeclareSeries(run_id=new_id(), series=SERIES))
    return ledger


def told(ledger):
    return claim(ledger.path.parent)


def test_all_runs_together_cost_the_series_and_answers_add_up_beside_it(ledger):
    for number in range(3):
        reserve(ledger, f"run-{number}", PLAN, logged=False)
        assert told(ledger).guarantee == PRICE, "the whole series, whatever of it took place"
    assert told(ledger).standing == "guarantee"
    assert told(ledger).composition.startswith("a declared series of 3 runs of 5 steps")
    assert told(ledger).conditions == ()
    query(ledger, "q", name="users", pure_epsilon=0.1)
    assert [part.kind for part in told(ledger).parts] == ["series", "query"]


def test_clip_norm_and_origins_may_follow_and_prices_may_not(ledger):
    reserve(ledger, "one", PLAN, logged=False)
    reserve(ledger, "two", changed_plan(PLAN, l2_clip_norm=0.1, item_clip_norm=0.05), logged=False)
    assert told(ledger).guarantee == PRICE
    for change in (
        {"noise_multiplier": 2.5},
        {"sampling_probability": 0.05},
        {"group_size": 3},
        {"steps": 4},
        {"population": 110},
    ):
        other = changed_plan(PLAN, **change)
        assert not SERIES.holds(other), change
    reserve(ledger, "other", changed_plan(PLAN, population=110), logged=False)
    assert [part.kind for part in told(ledger).parts] == ["series", "run"]
    assert told(ledger).standing == "spent so far"


def test_a_run_more_than_was_declared_pays_for_itself(ledger):
    for number in range(4):
        reserve(ledger, f"run-{number}", PLAN, logged=False)
    parts = told(ledger).parts
    assert [part.kind for part in parts] == ["series", "run"]
    assert told(ledger).guarantee.epsilon == PRICE.epsilon + PLAN.guarantee().epsilon


def test_runs_of_before_the_declaration_are_none_of_it(tmp_path):
    ledger = StoreLedger(tmp_path)
    reserve(ledger, "early", PLAN, logged=False)
    ledger.append(DeclareSeries(run_id=new_id(), series=SERIES))
    reserve(ledger, "one", PLAN, logged=False)
    assert [part.kind for part in told(ledger).parts] == ["run", "series"]


def test_a_further_charge_takes_a_run_of_the_series_and_none_beyond_it(ledger):
    reserve(ledger, "one", PLAN, logged=False)
    reserve(ledger, "copy", PLAN, again="one", logged=False)
    reserve(ledger, "two", PLAN, logged=False)
    assert told(ledger).guarantee == PRICE
    with pytest.raises(UseError, match="a run more than was declared"):
        reserve(ledger, "another", PLAN, again="one", logged=False)


def test_a_series_of_which_nothing_was_taken_is_not_declared_twice(ledger):
    (first,) = ledger.history().series
    assert list(ledger.append(DeclareSeries(run_id="same", series=SERIES)).series) == [first]
    ledger.append(DeclareSeries(run_id="other", series=Series(plan=PLAN, runs=2)))
    reserve(ledger, "one", PLAN, logged=False)
    ledger.append(DeclareSeries(run_id="again", series=SERIES))
    # A run of the first was taken, so that this is a second series.
    assert list(ledger.history().series) == [first, "other", "again"]


def test_every_run_inherits_the_series_once(ledger):
    reserve(ledger, "one", PLAN, logged=False)
    reserve(ledger, "two", PLAN, logged=False)
    lineage = inherited(ledger.history(), "two", "constants")
    [part] = lineage.parts
    assert isinstance(part, OfSeries)
    assert lineage.conditions == ()


def test_an_exact_look_in_the_middle_is_a_condition(ledger):
    reserve(ledger, "one", PLAN)
    reserve(ledger, "two", PLAN)
    [condition] = told(ledger).conditions
    assert condition.kind is ConditionKind.LOOKS


def test_a_series_and_a_filter_are_not_both_had(ledger, tmp_path):
    with pytest.raises(UseError, match="bounds nothing"):
        ledger.append(
            OpenBudget(run_id=new_id(), filter=RenyiFilter.opened(epsilon=8.0, delta=1e-5))
        )
    other = tmp_path / "other"
    other.mkdir()
    filtered = StoreLedger(other)
    filtered.append(OpenBudget(run_id=new_id(), filter=RenyiFilter.opened(epsilon=8.0, delta=1e-5)))
    with pytest.raises(UseError, match="second way to pay"):
        filtered.append(DeclareSeries(run_id=new_id(), series=SERIES))


def test_a_total_is_charged_the_series_when_it_is_declared(tmp_path):
    ledger = StoreLedger(tmp_path)
    ledger.append(Total(epsilon=PRICE.epsilon * 1.2, delta=1e-4))
    ledger.append(DeclareSeries(run_id=new_id(), series=SERIES))
    for number in range(3):
        reserve(ledger, f"run-{number}", PLAN)
    with pytest.raises(UseError, match="beyond the total"):
        reserve(ledger, "one-more", PLAN)


def test_the_series_is_the_exact_composition():
    together = PLAN.mechanism.with_steps(15)
    series = Series(plan=PLAN, runs=3)
    assert series.guarantee().epsilon == pytest.approx(together.epsilon(1e-5).upper, rel=1e-6)
    assert series.guarantee().epsilon < 2 * PLAN.guarantee().epsilon


@pytest.mark.parametrize(
    "plan",
    [
        els_plan(fixed_graph=True),
        changed_plan(els_plan(), accountant=Accountant.GROUP_PRIVACY),
        changed_plan(PLAN, unsafe_shuffle=True),
    ],
    ids=["fixed graph", "group privacy", "shuffled"],
)
def test_what_does_not_compose_exactly_is_no_series(plan):
    with pytest.raises(UseError, match="no series"):
        Series(plan=plan, runs=2)
