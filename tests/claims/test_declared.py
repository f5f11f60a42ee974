"""Constants that were recorded before a look were not chosen by it; a choice among several was."""

from __future__ import annotations

import pytest

from tests.ledgers import query, reserve
from tests.plans import uls_plan
from userdp.claims.lineage import inherited
from userdp.ledger import StoreLedger
from userdp.ledger.history import History
from userdp.ledger.lines import Declare

PLAN = uls_plan()


@pytest.fixture
def ledger(tmp_path) -> StoreLedger:
    return StoreLedger(tmp_path)


def run(ledger: StoreLedger, name: str, constants: str):
    reserve(ledger, name, PLAN, constants=constants)
    return inherited(ledger.history(), name, constants)


def declare_then_look(ledger: StoreLedger, *constants: str) -> None:
    for one in constants:
        ledger.append(Declare(constants=one))
    ledger.look("stats")
    query(ledger, "q", name="users", pure_epsilon=0.5)


def test_what_was_declared_before_a_look_inherits_nothing_of_it(ledger):
    declare_then_look(ledger, "a")
    lineage = run(ledger, "first", "a")
    assert (lineage.parts, lineage.conditions) == ((), ())


def test_what_was_declared_after_a_look_inherits_it(ledger):
    ledger.look("stats")
    query(ledger, "q", name="users", pure_epsilon=0.5)
    ledger.append(Declare(constants="a"))
    lineage = run(ledger, "first", "a")
    assert [part.id for part in lineage.parts] == ["q"]
    assert "stats" in lineage.conditions[0].told


def test_several_that_were_declared_run_in_their_order(ledger):
    declare_then_look(ledger, "a", "b", "c")
    assert [run(ledger, f"run {one}", one).conditions for one in "abc"] == [()] * 3


def test_invariant_13_which_of_several_runs_next_may_be_chosen_by_a_look(ledger):
    """2^k declared variants would tell k bits of what `stats` showed by the one that is trained."""
    declare_then_look(ledger, "a", "b", "c")
    lineage = run(ledger, "first", "b")
    assert lineage.parts
    assert lineage.conditions


def test_a_second_run_of_what_was_declared_is_a_choice(ledger):
    declare_then_look(ledger, "a")
    assert not run(ledger, "first", "a").parts
    assert {part.id for part in run(ledger, "second", "a").parts} == {"q", "first"}


def test_twin_where_the_order_does_not_count_the_choice_is_free(ledger, monkeypatch):
    monkeypatch.setattr(
        History, "fixed_at", lambda self, constants, begun: self.declared.get(constants, begun)
    )
    declare_then_look(ledger, "a", "b", "c")
    assert not run(ledger, "first", "b").conditions
