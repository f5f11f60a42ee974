"""A ledger's file that somebody else changed is known by its change time; our own changes are not.

Real programs put stores back here, and processes are killed in the middle of a line.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading

import pytest

from tests.ledger.runs import Killed, empty_store, go_on
from tests.plans import uls_plan
from userdp.claims import claim
from userdp.claims.conditions import ConditionKind
from userdp.errors import FailureError, UseError
from userdp.ledger import StoreLedger, journal
from userdp.ledger.journal import read_entries
from userdp.ledger.note import Note
from userdp.ledger.place import Place

PLAN = uls_plan()


def did(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True)


def by_tar(backup, store):
    did("tar", "-C", backup, "-cf", store.with_suffix(".tar"), ".")
    did("tar", "-C", store, "-xf", store.with_suffix(".tar"))


def from_nothing(backup, store):
    shutil.rmtree(store)
    did("cp", "-a", backup, store)


PUT_BACK = {
    "cp -r": lambda backup, store: did("cp", "-r", f"{backup}/.", store),
    "cp -a": lambda backup, store: did("cp", "-a", f"{backup}/.", store),
    "tar": by_tar,
    "rsync": lambda backup, store: did("rsync", "-a", f"{backup}/", store),
    "rsync in place": lambda backup, store: did("rsync", "-a", "--inplace", f"{backup}/", store),
    "removed, and cp -a": from_nothing,
}


@pytest.fixture(params=PUT_BACK)
def put_back(request):
    if request.param.startswith("rsync") and shutil.which("rsync") is None:
        pytest.skip("rsync is not installed")
    return PUT_BACK[request.param]


@pytest.fixture
def store(tmp_path):
    (tmp_path / "store").mkdir()
    charge(tmp_path / "store", "one")
    return tmp_path / "store"


def backed_up(folder):
    return shutil.copytree(folder, folder.with_name(f"backup of {folder.name}"), symlinks=True)


def kinds(place):
    return {condition.kind for condition in claim(place).conditions}


def charge(store, name):
    StoreLedger(store).reserve(name, PLAN, logged=False)


# Put back.


def test_invariant_12_a_store_that_was_put_back_whole_says_so(store, put_back):
    """Its ledger and the note of it agree, as they did then: only the file's time is another."""
    backup = backed_up(store)
    charge(store, "forgotten")
    put_back(backup, store)
    assert len(StoreLedger(store).charges()) == 1, "what was charged since is known to nobody"
    for _ in range(2):
        assert kinds(store) == {ConditionKind.COPY}
        charge(store, os.urandom(4).hex())
    assert kinds(store) == {ConditionKind.COPY}
    lines = read_entries(store / "ledger.jsonl")
    assert [line["kind"] for line in lines].count("place") == 1


def test_invariant_12_twin_the_inode_alone_does_not_tell_what_was_put_back_in_place(
    store, monkeypatch
):
    monkeypatch.setattr(Note, "differs", lambda self, ledger: ledger.stat().st_ino != self.inode)
    backup = backed_up(store)
    charge(store, "forgotten")
    PUT_BACK["cp -r"](backup, store)
    assert kinds(store) == set()


def test_invariant_12_a_run_that_goes_on_after_both_were_put_back_says_so(tmp_path, put_back):
    """Two models of three steps each, the second half of them at the price of one plan."""
    store, run = empty_store(tmp_path / "store"), tmp_path / "run"
    go_on(run, store, 2)
    backups = [backed_up(store.path), backed_up(run)]
    go_on(run, store, PLAN.steps)
    assert claim(run).complete
    assert kinds(run) == set()
    put_back(backups[0], store.path)
    shutil.rmtree(run)
    did("cp", "-a", backups[1], run)
    go_on(run, store, PLAN.steps)
    assert claim(run).complete
    assert kinds(run) == kinds(store.path) == {ConditionKind.COPY}


@pytest.mark.parametrize("kill", ["before the line", "within the line", "before the note"])
def test_a_kill_does_not_hide_what_was_put_back(store, monkeypatch, kill):
    backup = backed_up(store)
    charge(store, "forgotten")
    PUT_BACK["cp -r"](backup, store)
    with monkeypatch.context() as patch:
        patch.setattr(*KILLS[kill])
        with pytest.raises(Killed):
            charge(store, "killed")
    assert kinds(store) == {ConditionKind.COPY}
    charge(store, "two")
    assert kinds(store) == {ConditionKind.COPY}


# What is ours, or no change.


def test_a_store_that_was_moved_read_and_backed_up_keeps_quiet(store, tmp_path):
    for reads in (
        ("mv", store, tmp_path / "moved"),
        ("cat", tmp_path / "moved" / "ledger.jsonl"),
        ("cp", "-a", tmp_path / "moved", tmp_path / "backup"),
        ("tar", "-C", tmp_path / "moved", "-cf", tmp_path / "backup.tar", "."),
    ):
        did(*reads)
        assert kinds(tmp_path / "moved") == set(), reads[0]
    charge(tmp_path / "moved", "two")
    assert kinds(tmp_path / "moved") == set()


@pytest.mark.parametrize("command", ["chmod", "ln"])
def test_a_change_of_mode_or_links_is_a_condition_and_no_refusal(store, tmp_path, command):
    """Nobody can tell these from a ledger that was put back: a nuisance, and no error."""
    ledger = store / "ledger.jsonl"
    did(*(("chmod", "640", ledger) if command == "chmod" else ("ln", ledger, tmp_path / "link")))
    assert kinds(store) == {ConditionKind.COPY}
    charge(store, "two")


def test_a_store_of_before_the_time_was_noted_keeps_quiet(store):
    place = Place(store)
    note = Note.of(place.ledger).plain | {"changed": None}
    place._keep(Note.read(note))
    os.utime(place.ledger)
    assert kinds(store) == set()


def half_a_line(descriptor, path, text, end):
    os.pwrite(descriptor, text[: len(text) // 2], end)
    raise Killed


def whole_line(descriptor, path, text, end):
    os.pwrite(descriptor, text, end)
    raise Killed


def killed(*arguments, **options):
    raise Killed


KILLS = {
    "before the line": (journal, "_write", killed),
    "within the line": (journal, "_write", half_a_line),
    "after the line": (journal, "_write", whole_line),
    "before the note": (Place, "settle", killed),
    "before what is left of a torn line is cut off": (os, "ftruncate", killed),
}


@pytest.mark.parametrize("first", KILLS)
@pytest.mark.parametrize("second", KILLS)
def test_kills_make_no_copy_of_a_ledger(store, monkeypatch, first, second):
    for number, kill in enumerate((first, second)):
        with monkeypatch.context() as patch:
            patch.setattr(*KILLS[kill])
            with contextlib.suppress(Killed):
                charge(store, f"killed-{number}")
        assert kinds(store) == set(), "to whoever reads it"
    StoreLedger(store).declare("constants")
    StoreLedger(store).declare("constants")  # known already: nothing is written
    charge(store, "whole")
    assert kinds(store) == set()
    assert not [line for line in read_entries(store / "ledger.jsonl") if line["kind"] == "place"]


def test_a_torn_line_stays_where_nothing_is_added(store, monkeypatch):
    StoreLedger(store).declare("constants")
    with monkeypatch.context() as patch:
        patch.setattr(journal, "_write", half_a_line)
        with pytest.raises(Killed):
            charge(store, "killed")
    before = (store / "ledger.jsonl").read_bytes()
    StoreLedger(store).declare("constants")
    assert (store / "ledger.jsonl").read_bytes() == before
    assert kinds(store) == set()


def refused(*arguments):
    raise OSError(28, "No space left on device")


def test_a_disk_that_refused_a_line_makes_no_copy(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refused)
        with pytest.raises(FailureError):
            charge(store, "refused")
    assert kinds(store) == set()


@pytest.mark.parametrize("shared", [False, True])
def test_a_store_goes_on_whose_first_line_the_disk_refused(tmp_path, monkeypatch, shared):
    (tmp_path / "new").mkdir()
    if shared:
        Place.share(tmp_path / "new", tmp_path / "people.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refused)
        with pytest.raises(FailureError):
            charge(tmp_path / "new", "refused")
    assert StoreLedger(tmp_path / "new").charges() == []
    charge(tmp_path / "new", "later")
    assert len(StoreLedger(tmp_path / "new").charges()) == 1
    assert kinds(tmp_path / "new") == set()


def test_a_line_that_the_disk_refused_does_not_hide_what_was_put_back(store, monkeypatch):
    backup = backed_up(store)
    charge(store, "forgotten")
    PUT_BACK["cp -r"](backup, store)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refused)
        with pytest.raises(FailureError):
            charge(store, "refused")
    assert kinds(store) == {ConditionKind.COPY}


def test_whoever_reads_while_others_write_sees_no_copy(store):
    seen: list[bool] = []

    def writes(name):
        for number in range(8):
            charge(store, f"{name}-{number}")

    def reads():
        for _ in range(40):
            seen.append(StoreLedger(store).history().copied)

    threads = [threading.Thread(target=writes, args=(name,)) for name in "ab"]
    threads += [threading.Thread(target=reads) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 80
    assert not any(seen)
    assert len(StoreLedger(store).charges()) == 17


# One ledger for several stores.


@pytest.fixture
def shared(tmp_path):
    """Two stores of the same people, and the folder of their ledger; the first was charged."""
    stores = [tmp_path / "a", tmp_path / "b"]
    for one in stores:
        one.mkdir()
        StoreLedger.share(one, tmp_path / "people" / "people.jsonl")
    charge(stores[0], "one")
    return *stores, tmp_path / "people"


def test_stores_that_share_a_ledger_do_not_take_each_other_for_others(shared):
    first, second, _ = shared
    for number in range(3):
        charge(first, f"first-{number}")
        assert kinds(second) == set()
        charge(second, f"second-{number}")
        assert kinds(first) == set()


def test_invariant_12_a_shared_ledger_that_was_put_back_is_told_by_each_store(shared):
    """With the note beside it, and also in the eyes of a store that was not charged since."""
    first, second, people = shared
    backups = [backed_up(people), backed_up(first)]
    charge(first, "forgotten")
    PUT_BACK["cp -r"](backups[0], people)
    PUT_BACK["cp -r"](backups[1], first)
    assert kinds(first) == kinds(second) == {ConditionKind.COPY}
    assert kinds(people / "people.jsonl") == {ConditionKind.COPY}, "without a store"
    charge(second, "two")
    assert kinds(first) == kinds(second) == {ConditionKind.COPY}


def test_invariant_12_a_shared_ledger_alone_that_was_put_back_is_refused_by_each_store(shared):
    first, second, people = shared
    backup = (people / "people.jsonl").read_bytes()
    charge(first, "forgotten")
    (people / "people.jsonl").write_bytes(backup)
    for one in (first, second):
        with pytest.raises(UseError, match="put back to an earlier state"):
            charge(one, "two")
    with pytest.raises(UseError, match="put back to an earlier state"):
        claim(people / "people.jsonl")


def test_a_store_that_begins_to_share_a_copied_ledger_notes_that_it_is_one(shared, tmp_path):
    first, _, people = shared
    shutil.copytree(people.rename(tmp_path / "elsewhere"), people)
    (tmp_path / "c").mkdir()
    StoreLedger.share(tmp_path / "c", people / "people.jsonl")
    assert kinds(tmp_path / "c") == kinds(first) == {ConditionKind.COPY}


def test_the_note_beside_a_shared_ledger_is_the_operators(shared):
    assert (shared[2] / "people.jsonl.place").stat().st_mode & 0o777 == 0o600
