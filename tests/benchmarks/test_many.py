"""Many at once: the judge notices what is wrong, and a short game with real processes ends well."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults.many.judge import Judge, turns_of
from benchmarks.faults.many.notes import Notes, read_notes
from benchmarks.faults.many.table import BEGIN, END, section, told
from benchmarks.faults.planted import ROOT
from benchmarks.faults.table import write_section
from tests.plans import uls_plan
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.ledger.store_journal import StoreJournal

PRICES = {"reserve": 4.0, "query": 0.25}


def ledger(folder: Path, *names: str) -> str:
    """A store's ledger with one charge after another, as the judge reads it."""
    for name in names:
        StoreLedger(folder).query(name, name="users", pure_epsilon=0.25)
    return str(folder / "ledger.jsonl")


def charge(where: str, name: str, *, begun: float, charged: float | None, what: str = "query"):
    """The notes of a charge, which a kill may cut off after the first."""
    note = {"ledger": where, "id": name, "what": what}
    yield {"kind": "begun", "at": begun, **note}
    if charged is not None:
        yield {"kind": "charged", "at": charged, **note}


def told_to(where: str, epsilon: float, *, since: float, at: float, run_id: str | None = None):
    """The note of somebody who read a claim."""
    note = {"kind": "claim", "subject": "store", "ledger": where, "run_id": run_id}
    return {**note, "epsilon": epsilon, "since": since, "at": at}


def problems(folder: Path, *notes) -> list[str]:
    return Judge(folder, prices=PRICES).problems(sorted(notes, key=lambda note: note["at"]))


@pytest.mark.parametrize(
    ("epsilon", "holds"),
    [(0.0, False), (0.25, True), (0.5, True), (0.75, False)],
    ids=["forgot one", "the acknowledged one", "and the other that was begun", "more than both"],
)
def test_a_claim_holds_what_was_acknowledged_and_at_most_what_was_begun(tmp_path, epsilon, holds):
    where = ledger(tmp_path, "a", "b")
    notes = [
        *charge(where, "a", begun=1.0, charged=2.0),
        *charge(where, "b", begun=3.5, charged=5.0),
        told_to(where, epsilon, since=3.0, at=4.0),
    ]
    assert (problems(tmp_path, *notes) == []) is holds


@pytest.mark.parametrize(("epsilon", "holds"), [(4.0, False), (4.25, True), (4.5, False)])
def test_a_runs_claim_holds_itself_and_all_before_it(tmp_path, epsilon, holds):
    where = ledger(tmp_path, "before", "after")
    StoreLedger(tmp_path).reserve("run", uls_plan())
    notes = [
        *charge(where, "before", begun=1.0, charged=2.0),
        *charge(where, "run", begun=3.0, charged=4.0, what="reserve"),
        *charge(where, "after", begun=5.0, charged=6.0),
        told_to(where, epsilon, since=7.0, at=8.0, run_id="run"),
    ]
    assert (problems(tmp_path, *notes) == []) is holds


def test_a_refused_charge_is_in_no_claim_and_not_in_the_ledger(tmp_path):
    where = ledger(tmp_path, "a")
    refused = {"kind": "refused", "at": 4.0, "ledger": where, "id": "b", "what": "query"}
    notes = [
        *charge(where, "a", begun=1.0, charged=2.0),
        *charge(where, "b", begun=3.0, charged=None),
        refused,
    ]
    assert problems(tmp_path, *notes, told_to(where, 0.25, since=5.0, at=6.0)) == []
    assert problems(tmp_path, *notes, told_to(where, 0.5, since=5.0, at=6.0))
    ledger(tmp_path, "b")
    assert problems(tmp_path, *notes) == [f"{where} holds b, which was refused"]


def test_a_charge_that_a_kill_cut_off_may_be_there_or_not(tmp_path):
    where = ledger(tmp_path, "a")
    for name in ("a", "never written"):
        cut = list(charge(where, name, begun=1.0, charged=None))
        assert problems(tmp_path, *cut, told_to(where, 0.25, since=5.0, at=6.0)) == []
        assert problems(tmp_path, *cut, told_to(where, 0.0, since=5.0, at=6.0)) == []


def test_a_charge_that_is_about_to_be_the_first_needs_no_ledger_yet(tmp_path):
    cut = list(charge(str(tmp_path / "ledger.jsonl"), "a", begun=1.0, charged=None))
    assert problems(tmp_path, *cut) == []


def test_an_acknowledged_charge_that_the_ledger_lost_is_noticed(tmp_path):
    where = ledger(tmp_path, "a")
    notes = [*charge(where, "a", begun=1, charged=2), *charge(where, "b", begun=3, charged=4)]
    assert problems(tmp_path, *notes) == [f"{where} has lost b, which was acknowledged"]


def test_notes_tell_of_a_charge_before_and_after_and_of_a_refusal(tmp_path, monkeypatch):
    monkeypatch.setattr(StoreJournal, "charge", StoreJournal.charge)  # is put back afterwards
    (tmp_path / "notes").mkdir()
    (tmp_path / "store").mkdir()
    notes = Notes(tmp_path / "notes" / "one.jsonl")
    notes.watch()
    where = ledger(tmp_path / "store", "a")
    with pytest.raises(UseError):
        ledger(tmp_path / "store", "a")
    found = read_notes(tmp_path / "notes")
    assert [note["kind"] for note in found] == ["begun", "charged", "begun", "refused"]
    assert {(note["ledger"], note["id"], note["what"]) for note in found} == {(where, "a", "query")}


def outcome(at: float, what: str) -> dict[str, object]:
    return {"kind": "outcome", "who": "asks", "at": at, "outcome": what}


def test_turns_are_counted_and_the_longest_wait_is_told():
    notes = [outcome(2.0, "done"), outcome(3.0, "refused"), outcome(4.0, "killed")]
    (turns,) = turns_of([*notes, outcome(9.0, "done")], begin=0.0, end=10.0).values()
    assert (turns.done, turns.refused, turns.killed, turns.longest) == (2, 1, 1, 7.0)


def test_the_section_tells_each_process_and_replaces_itself(tmp_path):
    turns = {"asks-1": {"done": 3, "refused": 1, "killed": 2, "longest": 4.5}}
    row = {
        "key": {"digest": "0123"}, "date": "2026-11-23", "cores": 2, "seconds": 600.0,
        "turns": turns, "charges": 7, "claims": 5, "steps": 0, "purses": {}, "problems": [],
    }  # fmt: skip
    page = tmp_path / "page.md"
    for _ in range(2):
        write_section(page, section(row))
    text = page.read_text()
    assert "| asks-1 | 3 | 1 | 2 | 4.5 |" in text
    assert (text.count(BEGIN), text.count(END)) == (1, 1)
    assert told(row).endswith("no problems")
    assert told({**row, "problems": ["one"]}).endswith("1 problem")


def played(folder: Path, *options: object) -> tuple[int, dict]:
    """A game in processes of its own: this one has computed, and forks would miss its threads."""
    results = folder / "results.jsonl"
    words = ["-m", "benchmarks.faults.many", "--results", results, *options]
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert results.exists(), done.stderr
    return done.returncode, json.loads(results.read_text())


@pytest.mark.slow
def test_four_processes_at_once_and_every_claim_is_right(tmp_path):
    names = ("trains-1", "asks-1", "asks-2", "reports")
    status, row = played(tmp_path, "--seconds", 25, "--only", *names)
    assert row["problems"] == []
    assert status == 0
    assert set(row["turns"]) == set(names)
    assert row["charges"] > 3
    assert row["claims"] > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("twin", "said"),
    [("no-lock", "ledger"), ("judged-before", "holds 2 answers, and gave")],
)
def test_twin_of_a_library_without_it_is_caught(tmp_path, twin, said):
    names = ("asks-1", "asks-2") if twin == "judged-before" else ()
    only = ("--only", *names) if names else ()
    # Ends at the first problem: as long as a busy machine may need to ask for one answer too many.
    status, row = played(tmp_path, "--seconds", 200, "--twin", twin, *only)
    assert status == 1
    assert any(said in problem for problem in row["problems"])
