"""A run that goes on in a copy of its store and of its folder says that it counts on no other."""

from __future__ import annotations

import pytest

from tests.ledger.runs import copied, go_on, new_store, opened
from tests.plans import uls_plan
from userdp.claims import claim
from userdp.claims.ledger_lineage import run_lineage
from userdp.claims.lineage import COPIED, ConditionKind, Lineage
from userdp.data.user_store import UserStore
from userdp.ledger import RunRecord, StoreLedger
from userdp.ledger.lines import Open

PLAN = uls_plan()


@pytest.fixture
def copies(tmp_path):
    """A store and an unfinished run, and copies of both."""
    here = new_store(tmp_path / "store")
    go_on(tmp_path / "run", here)
    copied(here.path, tmp_path / "store 2")
    there = UserStore.open(tmp_path / "store 2")
    return here, tmp_path / "run", there, copied(tmp_path / "run", tmp_path / "run 2")


def kinds(place):
    return {condition.kind for condition in claim(place).conditions}


def test_invariant_12_each_copy_of_store_and_run_goes_on_and_the_copies_say_so(copies):
    """Two models for one charge each: what one of them claims counts on the other's not being."""
    here, run, there, copy = copies
    go_on(copy, there, PLAN.steps)
    go_on(run, here, PLAN.steps)
    assert (claim(copy).complete, claim(copy).guarantee) == (True, PLAN.guarantee())
    assert COPIED in run_lineage(RunRecord.read(copy)).conditions, "by its own ledger"
    assert kinds(copy) == kinds(there.path) == {ConditionKind.COPY}
    assert kinds(run) == kinds(here.path) == set(), "nothing tells the first that it was copied"


def test_invariant_12_twin_a_lineage_that_was_fixed_at_the_first_opening_says_nothing(
    copies, monkeypatch
):
    _, _, there, copy = copies
    go_on(copy, there, PLAN.steps)
    of = RunRecord.of
    monkeypatch.setattr(RunRecord, "of", lambda run, kind: [] if kind is Open else of(run, kind))
    monkeypatch.setattr("userdp.claims.claims.meanwhile", lambda run, store: Lineage())
    assert kinds(copy) == set()


def test_an_open_loop_says_what_was_shown_meanwhile(copies):
    here, run, *_ = copies
    StoreLedger(here.path).look("stats")
    assert kinds(run) == kinds(here.path) == {ConditionKind.LOOKS}


def test_what_the_weights_descend_from_is_what_the_ledger_says(copies):
    _, _, there, copy = copies
    run = opened(copy, there)
    told = run.lineage
    run.finish(weights="w")
    run.close()
    assert told == claim(copy).lineage
    assert {one.kind for one in told.conditions} == {ConditionKind.COPY}
    [released] = StoreLedger(there.path).history().released
    assert released.lineage == told.plain


def test_a_store_that_becomes_a_copy_while_a_run_is_open_is_told_at_its_end(copies, tmp_path):
    here, run, _, _ = copies
    went = opened(run, here)
    copied(here.path, tmp_path / "backup")
    for path in (tmp_path / "backup").iterdir():  # put back, file by file
        if path.is_file():
            path.replace(here.path / path.name)
    went.finish()
    went.close()
    assert kinds(run) == {ConditionKind.COPY}
