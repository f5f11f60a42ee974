"""A journal: what is acknowledged is on the disk, what is edited is noticed, nothing is half."""

import multiprocessing
import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from tests.kills import run_apart
from tests.ledgers import query, settle
from userdp.core.errors import FailureError, UseError
from userdp.ledger import journal
from userdp.ledger.journal import append, read
from userdp.ledger.lines import Line
from userdp.ledger.store_ledger import StoreLedger


@dataclass(frozen=True, kw_only=True)
class Number(Line):
    """A line of tests."""

    kind: ClassVar[str] = "number of a test"

    n: float | str


def add(path, *numbers, after=None):
    """Append the numbers, as lines."""
    return append(path, lambda before: [Number(n=n) for n in numbers], after=after)


def numbers(path):
    return [line.n for line in read(path).lines]


@pytest.fixture
def path(tmp_path):
    """A journal of three lines."""
    add(tmp_path / "ledger.jsonl", 1, 2, 3)
    return tmp_path / "ledger.jsonl"


ALONE = pytest.mark.parametrize("alone", [False, True], ids=["of many", "only writer"])


def tail_of(path, alone):
    """Where the only writer of a journal knows that it ends."""
    return read(path).tail if alone else None


@ALONE
def test_what_was_appended_is_read_back_in_order(path, alone):
    after = add(path, 4, 5, after=tail_of(path, alone))
    add(path, 6, after=after if alone else None)
    assert numbers(path) == [1, 2, 3, 4, 5, 6]
    assert read(path).data == path.read_bytes()
    assert numbers(path.with_name("none")) == []


@ALONE
def test_invariant_7_a_line_is_on_the_disk_when_it_is_acknowledged(path, monkeypatch, alone):
    """As far as a process can see: the file was synced after its last byte was written."""
    synced, fsync, after = [], os.fsync, tail_of(path, alone)

    def watched(descriptor):
        fsync(descriptor)
        seen = os.fstat(descriptor)
        synced.append((seen.st_ino, seen.st_size))

    monkeypatch.setattr(os, "fsync", watched)
    add(path, 4, after=after)
    assert (path.stat().st_ino, path.stat().st_size) in synced


@pytest.mark.parametrize("left", [None, b"", b'{"n": 1'])
def test_invariant_7_the_files_name_is_on_the_disk_before_its_first_line_is_written(
    tmp_path, monkeypatch, left
):
    """Also where somebody made the file, and was killed before its name was on the disk."""
    path = tmp_path / "ledger.jsonl"
    if left is not None:
        path.write_bytes(left)
    synced, sync = [], journal.files.sync

    def watched(folder):
        sync(folder)
        synced.append((folder, path.read_bytes()))

    monkeypatch.setattr(journal.files, "sync", watched)
    add(path, 0)
    add(path, 1)
    assert synced == [(tmp_path, left or b"")]


@pytest.mark.parametrize("cut", [1, 5, 20])
@ALONE
def test_a_torn_last_line_is_ignored_and_written_over(path, cut, alone):
    path.write_bytes(path.read_bytes()[:-cut])
    assert numbers(path) == [1, 2]
    add(path, 4, after=tail_of(path, alone))
    assert numbers(path) == [1, 2, 4]


@pytest.mark.parametrize("seen", [False, True], ids=["unread", "read before"])
@pytest.mark.parametrize(
    "tamper",
    [
        lambda lines: [lines[0].replace(b'"n":1', b'"n":9'), *lines[1:]],
        lambda lines: [*lines[:-1], lines[-1].replace(b'"prev"', b'"prev" ')],
        lambda lines: [lines[0], lines[2]],
        lambda lines: [lines[0], lines[2], lines[1]],
    ],
    ids=["edited", "last, edited", "dropped", "re-ordered"],
)
def test_invariant_1_a_tampered_ledger_is_noticed(path, tamper, seen):
    journal._decoded.cache_clear()
    if seen:
        read(path)
    add(path, 4)
    path.write_bytes(b"".join(tamper(path.read_bytes().splitlines(keepends=True)[:3])))
    with pytest.raises(UseError, match=r"does not follow|is not a ledger entry|is damaged"):
        read(path)


@pytest.mark.parametrize("line", ['"kind":"another"', '"kind":"number of a test","n":[1]', '"n":1'])
def test_a_line_of_another_kind_or_another_type_is_refused(tmp_path, line):
    path = tmp_path / "ledger.jsonl"
    path.write_text(f'{{{line},"prev":"{"0" * 16}"}}\n')
    with pytest.raises(UseError, match=r"line 1 of .* is damaged"):
        read(path)


def fill_the_disk(path: str) -> None:
    """Append until no more fits; how many were acknowledged, the last of them, how it ends."""
    place, acknowledged = Path(path), 0
    after = add(place, 0)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
    try:
        while True:
            after = add(place, acknowledged + 1, after=after)
            acknowledged += 1
    except FailureError as error:
        print(acknowledged, numbers(place)[-1], place.read_bytes()[-1:], error.message, sep=";")


def test_a_full_disk_leaves_the_acknowledged_lines_and_no_half_line(tmp_path):
    [[acknowledged, last, end, *said]] = run_apart(fill_the_disk, tmp_path / "ledger.jsonl")
    assert int(acknowledged) == float(last) > 2
    assert (end, "not released" in "".join(said)) == (r"b'\n'", True)


def charge_with_others(folder, name, ready):
    ready.wait()
    ledger = StoreLedger(folder)
    ledger.history()  # what others have half written must not be in the way
    query(ledger, name, name="users", pure_epsilon=0.1)


def test_processes_that_charge_a_new_store_at_the_same_time_are_all_charged(tmp_path):
    names, new = [f"query-{number}" for number in range(6)], multiprocessing.get_context("spawn")
    ready = new.Barrier(len(names))
    processes = [new.Process(target=charge_with_others, args=(tmp_path, n, ready)) for n in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(names)
    assert (
        sorted(charge.run_id for charge in StoreLedger(tmp_path).history().charges.values())
        == names
    )


@pytest.mark.parametrize("left", [b"", b'{"kind":"store","sche'], ids=["nothing", "half a line"])
def test_a_ledger_whose_first_line_a_kill_cut_short_is_begun_again(tmp_path, left):
    (tmp_path / "ledger.jsonl").write_bytes(left)
    store = StoreLedger(tmp_path)
    assert store.history().charges == {}
    with pytest.raises(UseError, match="paid for"):
        settle(store, "one")
    query(store, "one", name="users", pure_epsilon=0.1)
    assert [charge.run_id for charge in store.history().charges.values()] == ["one"]


@ALONE
@pytest.mark.parametrize("what", ["\udcff", float("nan")], ids=["no UTF-8", "no number"])
def test_a_line_that_no_reader_would_take_is_not_appended(path, alone, what):
    """All that was charged before would be lost with it."""
    before, after = path.read_bytes(), tail_of(path, alone)
    with pytest.raises(ValueError, match=r"surrogates not allowed|must be finite"):
        add(path, 4, what, after=after)
    assert path.read_bytes() == before
    add(path, 4, after=after)
    assert numbers(path) == [1, 2, 3, 4]
