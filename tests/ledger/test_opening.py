"""Invariant 12: one charge is gone on with once, whatever is copied, put back or deleted.

What is opened here are the run folders of `tests.ledger.runs`; kills: `test_killed_openings`.
"""

import contextlib
import math
import os
import shutil

import pytest

from tests.ledger.runs import PLAN, Killed, contents, copied, go_on, new_store, opened
from tests.ledger.stories import SELECTION
from tests.ledgers import query, select
from userdp.claims import claim
from userdp.commands.store import settle
from userdp.core.errors import FailureError, UseError
from userdp.ledger import RunLedger, StoreLedger, permitted_lines
from userdp.ledger.lines import Open
from userdp.ledger.run_lock import Counter
from userdp.plans import StepRecord
from userdp.training.config import UnsafeSeeds
from userdp.training.open_run import constants_digest

ELSEWHERE = "not the one that was opened last"


@pytest.fixture
def store(tmp_path):
    return new_store(tmp_path / "store")


@pytest.fixture
def run(tmp_path, store):
    folder = tmp_path / "run"
    go_on(folder, store)
    return folder


def test_a_run_goes_on_as_often_as_it_is_interrupted(run, store):
    assert [go_on(run, store) for _ in range(6)] == [1, 1, 1, 1, 0, 0]
    assert claim(run).guarantee == PLAN.guarantee() == claim(store.path).guarantee
    assert claim(run).complete
    assert len(StoreLedger(store.path).history().charges) == 1


def test_invariant_1_a_run_whose_randomness_has_a_known_seed_claims_nothing(tmp_path, store):
    go_on(tmp_path / "run", store, unsafe_seeds=UnsafeSeeds(draws=1))
    assert claim(tmp_path / "run").guarantee.epsilon == math.inf
    assert "known seed" in claim(tmp_path / "run").why_nothing


def test_invariant_1_a_trial_is_gone_on_with_in_its_own_slot_alone(tmp_path, store):
    constants = constants_digest(PLAN, None, store)
    how = {"constants": (constants,), "slots": {"a": constants}}
    select(StoreLedger(store.path), "s", SELECTION, **how)
    go_on(tmp_path / "trial", store, slot="a")
    with pytest.raises(UseError, match="the slot that pays is not the one"):
        go_on(tmp_path / "trial", store)


# Copies, and what was put back.


@pytest.mark.pitfall(number=35)
@pytest.mark.parametrize("first", ["run", "copy"])
def test_invariant_12_a_copy_is_refused_after_the_other_went_on(run, store, tmp_path, first):
    one, other = run, copied(run, tmp_path / "copy")
    if first == "copy":
        one, other = other, one
    go_on(one, store)
    before = contents(other)
    with pytest.raises(UseError, match=ELSEWHERE):
        go_on(other, store)
    assert contents(other) == before, "what a copy holds may not become what the store knows"
    go_on(one, store)
    ended = settle(other)
    assert ended["steps_attempted"] == 3, "settled from any of its folders, all of them count"
    assert settle(one) == {**ended, "run": str(one)}, "once"
    with pytest.raises(UseError, match="settled before its end"):
        go_on(one, store)


def test_a_run_is_settled_in_the_store_beside_it(run, store, tmp_path):
    copy = shutil.copytree(run.parent, tmp_path.with_name(f"{tmp_path.name}-copied"))
    settle(copy / run.name)
    go_on(run, store)
    shutil.rmtree(copy / store.path.name)
    shutil.rmtree(store.path)
    with pytest.raises(UseError, match="no store that knows the run"):
        settle(copy / run.name)


def unless_opened(history, line, is_new=permitted_lines.is_new):
    return not isinstance(line, Open) and is_new(history, line)


def test_invariant_12_twin_an_opening_that_is_not_written_in_the_store_lets_a_copy_go_on(
    run, store, tmp_path, monkeypatch
):
    copy = copied(run, tmp_path / "copy")
    with monkeypatch.context() as patch:
        patch.setattr(permitted_lines, "is_new", unless_opened)
        go_on(run, store)
    go_on(copy, store)


@pytest.mark.parametrize("back_to", ["the opening before", "before the run"])
def test_invariant_12_a_stores_ledger_that_was_put_back_is_refused(store, tmp_path, back_to):
    run = tmp_path / "run"
    query(StoreLedger(store.path), "q", name="users", pure_epsilon=0.1)
    kept = kept_of(store)
    go_on(run, store)
    if back_to == "the opening before":
        kept = kept_of(store)
        go_on(run, store)
    put_back(store, kept)
    with pytest.raises(UseError, match=f"{ELSEWHERE}|put back to an earlier state"):
        go_on(run, store)


def finish(opening, weights=None):
    """Take all the steps of an open run, and end it."""
    while opening.ledger.remaining:
        opening.ledger.attempt(StepRecord.of_plan(PLAN))
    opening.finish(weights)
    opening.close()


def test_a_copy_of_before_the_end_of_a_finished_run_is_refused(run, store, tmp_path):
    copy, opening = copied(run, tmp_path / "copy"), opened(run, store)
    latest = copied(run, tmp_path / "latest")
    finish(opening)
    for folder, words in ((latest, "was finished"), (copy, "was finished"), (run, "is finished")):
        with pytest.raises(UseError, match=words):
            go_on(folder, store)


def test_invariant_12_a_copy_is_not_opened_while_the_first_is_open(run, store, tmp_path):
    opening, copy = opened(run, store), copied(run, tmp_path / "copy")
    with pytest.raises(FailureError, match="in use by another process"):
        go_on(copy, store)
    opening.close()
    go_on(copy, store)
    with pytest.raises(UseError, match=ELSEWHERE):
        go_on(run, store)


# The counter.


def kept_of(store):
    """The ledger, and what remembers how far it was written."""
    return {name: (store.path / name).read_bytes() for name in ("ledger.jsonl", "ledger.json")}


def put_back(store, kept):
    for name, content in kept.items():
        (store.path / name).write_bytes(content)


def steps_of_all(run, store, tmp_path):
    """Folder and store's ledger put back again and again: the steps that all of them took."""
    backup, kept = copied(run, tmp_path / "backup"), kept_of(store)
    taken = 1
    for _ in range(4):
        with contextlib.suppress(UseError):
            taken += go_on(run, store, 2)
        copied(backup, run)
        put_back(store, kept)
    return taken


def test_invariant_12_all_folders_together_take_as_many_steps_as_were_charged(run, store, tmp_path):
    assert steps_of_all(run, store, tmp_path) <= PLAN.steps


def test_invariant_12_twin_without_the_counter_folders_that_were_put_back_take_more(
    run, store, tmp_path, monkeypatch
):
    monkeypatch.setattr(Counter, "count", lambda self, attempts=1: None)
    assert steps_of_all(run, store, tmp_path) > PLAN.steps


def steps_of_both(run, store):
    """How many steps are taken by a process and by its fork, which has the same open run."""
    both, child = opened(run, store), os.fork()
    taken = 0
    try:
        while both.ledger.remaining:
            both.ledger.attempt(StepRecord.of_plan(PLAN))
            taken += 1
    except FailureError:
        pass
    finally:
        if child == 0:
            os._exit(taken)
    _, status = os.waitpid(child, 0)
    both.close()
    return taken + os.waitstatus_to_exitcode(status)


def test_invariant_12_a_fork_takes_no_step_of_the_run_that_was_open(run, store):
    assert steps_of_both(run, store) == PLAN.steps - 1  # one was taken before


def test_invariant_12_twin_processes_that_are_not_told_apart_take_more(run, store, monkeypatch):
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert steps_of_both(run, store) == 2 * (PLAN.steps - 1)


def test_a_step_is_counted_once_however_often_its_line_fails(run, store, monkeypatch):
    def full(*line):
        raise FailureError("no space left")

    opening = opened(run, store)
    with monkeypatch.context() as patch:
        patch.setattr(RunLedger, "append", full)
        for _ in range(3):
            with pytest.raises(FailureError):
                opening.ledger.attempt(StepRecord.of_plan(PLAN))
    opening.close()
    assert go_on(run, store) == 1


def killed_before_the_line_of_a_step(run, store, monkeypatch):
    """Between the counter and the ledger."""
    opening = opened(run, store)

    def killed(*arguments):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunLedger, "append", killed)
        with pytest.raises(Killed):
            opening.ledger.attempt(StepRecord.of_plan(PLAN))
    opening.close()


def test_invariant_12_a_step_is_counted_on_the_disk_before_it_is_charged(run, store, monkeypatch):
    (counter,) = (store.path / "runs").iterdir()
    killed_before_the_line_of_a_step(run, store, monkeypatch)
    assert counter.stat().st_size == 2
    opened(run, store).close()
    assert claim(run).steps == 2


def test_invariant_12_a_step_that_a_kill_cut_off_is_not_offered_again(run, store, monkeypatch):
    killed_before_the_line_of_a_step(run, store, monkeypatch)
    # One was taken by the fixture, one was cut off between the counter and its line.
    assert go_on(run, store, 9) == PLAN.steps - 2


@pytest.mark.parametrize("ledger", [True, False], ids=["both", "the folder only"])
def test_invariant_12_a_folder_and_a_ledger_that_were_put_back_together_are_refused(
    run, store, tmp_path, ledger
):
    backup, kept = copied(run, tmp_path / "backup"), kept_of(store)
    go_on(run, store, 2)
    copied(backup, run)
    if ledger:
        put_back(store, kept)
    with pytest.raises(UseError, match=ELSEWHERE):
        go_on(run, store)


def test_invariant_9_what_a_run_needs_to_go_on_is_the_operators(run, store):
    """It holds a digest of everybody's text, by which a guess could be tested."""
    (counter,) = (store.path / "runs").iterdir()
    places = [run / "resume.json", store.path / "ledger.json", counter, counter.parent]
    assert [path.stat().st_mode & 0o777 for path in places] == [0o600, 0o600, 0o600, 0o700]


def test_a_counter_that_was_deleted_is_refused(run, store):
    (counter,) = (store.path / "runs").iterdir()
    kept = counter.read_bytes()
    counter.unlink()
    with pytest.raises(UseError, match="is gone"):
        go_on(run, store)
    counter.write_bytes(kept)
    go_on(run, store)
