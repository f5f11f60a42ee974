"""What one process reads while another writes is right, and neither takes the other for damage."""

from __future__ import annotations

import fcntl
import os
import threading
import time

import pytest

from tests.ledgers import reserve
from tests.plans import uls_plan
from userdp.core.errors import FailureError, UseError
from userdp.ledger import StoreLedger, journal, place
from userdp.ledger.place import Counter, Place, attempts_in, open_charges


def begin_and_step(store, name="other"):
    """Another process reserves a run and takes its first step."""
    ledger = StoreLedger(store)
    reserve(ledger, name, uls_plan())
    with Counter(ledger.place.runs / name, begun=False) as counter:
        counter.count()


@pytest.mark.parametrize("when", ["before it is read", "after it was read"])
def test_a_run_that_begins_while_the_ledger_is_read_is_not_taken_for_lost(
    tmp_path, monkeypatch, when
):
    reserve(StoreLedger(tmp_path), "one", uls_plan())
    read, met = journal.read, []

    def meanwhile(path, *kinds):
        before = read(path, *kinds)
        if not met:
            met.append(True)
            begin_and_step(tmp_path)
        return before if when == "after it was read" else read(path, *kinds)

    monkeypatch.setattr(journal, "read", meanwhile)
    assert list(StoreLedger(tmp_path).history().charges)[:1] == ["one"]
    assert list(StoreLedger(tmp_path).history().charges) == ["one", "other"]


def test_twin_a_ledger_that_forgot_a_run_is_still_refused(tmp_path):
    reserve(StoreLedger(tmp_path), "one", uls_plan())
    with Counter(StoreLedger(tmp_path).place.runs / "forgotten", begun=False) as counter:
        counter.count()
    with pytest.raises(UseError, match="put back to an earlier state"):
        StoreLedger(tmp_path).history()


def test_a_counter_that_vanishes_while_counters_are_read_is_none(tmp_path):
    """That of a charge that was refused goes; a link that leads nowhere is read like one."""
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "there").write_bytes(b"7")
    assert attempts_in(tmp_path) == {"there": 7}
    assert open_charges(tmp_path) == []


def hold(path, *, seconds):
    """Hold the lock of a file for a time, in a thread; a lock is that of an open file."""
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    def wait():
        time.sleep(seconds)
        os.close(descriptor)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_of_two_who_ask_which_runs_are_open_neither_takes_the_other_for_a_run(
    tmp_path, monkeypatch
):
    path = tmp_path / "runs" / "one"
    Counter(path, begun=False).close()
    flock, met = fcntl.flock, []

    def meanwhile(descriptor, how):
        flock(descriptor, how)
        if not met:  # the first one holds what it asked with
            met.append(None)
            met[0] = open_charges(path.parent)

    monkeypatch.setattr(fcntl, "flock", meanwhile)
    assert open_charges(path.parent) == []
    assert met == [[]]
    with Counter(path, begun=True):
        assert open_charges(path.parent) == ["one"]


def test_whoever_asks_which_runs_are_open_keeps_no_run_from_being_opened(tmp_path):
    path = tmp_path / "runs" / "one"
    Counter(path, begun=False).close()
    asks = hold(path, seconds=0.1)
    Counter(path, begun=True).close()
    asks.join()


def test_twin_a_run_that_is_open_is_not_opened_a_second_time(tmp_path, monkeypatch):
    monkeypatch.setattr(place, "_ASKED", 0.05)
    path = tmp_path / "runs" / "one"
    with (
        Counter(path, begun=False),
        pytest.raises(FailureError, match="in use by another process"),
    ):
        Counter(path, begun=True)


def test_a_shared_ledger_that_another_store_begins_meanwhile_is_not_gone(tmp_path, monkeypatch):
    shared, stores = tmp_path / "people.jsonl", [tmp_path / "a", tmp_path / "b"]
    for store in stores:
        store.mkdir()
        Place.share(store, shared)
    ledger = StoreLedger(stores[0])
    exists, met = type(shared).exists, []

    def meanwhile(path, **options):
        there = exists(path, **options)
        if path == shared and not there and not met:
            met.append(True)
            reserve(StoreLedger(stores[1]), "other", uls_plan())
        return there

    monkeypatch.setattr(type(shared), "exists", meanwhile)
    assert ledger.history().charges == {}
    assert list(ledger.history().charges) == ["other"]
