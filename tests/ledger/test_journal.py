"""A journal: what is acknowledged is on the disk, what is edited is noticed, nothing is half."""

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pytest

from tests.ledgers import query, settle
from userdp.core.errors import FailureError, UseError
from userdp.ledger import journal
from userdp.ledger.journal import JournalWriter, append, exclusive, read, read_entries
from userdp.ledger.store import StoreLedger


@dataclass(frozen=True)
class First:
    """Opens a journal of numbers."""

    kind: ClassVar[str] = "first"

    n: float | str


@dataclass(frozen=True)
class Number(First):
    """Any later line."""

    kind: ClassVar[str] = "number"


KINDS = {"first": First, "number": Number}


def add(path, *numbers, how="append"):
    """Append the numbers, as lines."""
    if how == "append":
        kinds = {True: First, False: Number}
        append(path, KINDS, lambda before: [
            kinds[not before and not at](n) for at, n in enumerate(numbers)
        ])  # fmt: skip
    else:
        writer = JournalWriter(path, KINDS)
        try:
            for n in numbers:
                writer.append(Number(n))
        finally:
            writer.close()


def numbers(path):
    return [line.n for line in read(path, KINDS)[0]]


@pytest.fixture
def path(tmp_path):
    """A journal of three lines."""
    add(tmp_path / "ledger.jsonl", 1, 2, 3)
    return tmp_path / "ledger.jsonl"


HOW = pytest.mark.parametrize("how", ["append", "JournalWriter"])


@HOW
def test_what_was_appended_is_read_back_in_order(path, how):
    add(path, 4, 5, how=how)
    assert numbers(path) == [1, 2, 3, 4, 5]
    assert read(path, KINDS)[1] == path.read_bytes()


@HOW
def test_invariant_7_a_line_is_on_the_disk_when_it_is_acknowledged(path, monkeypatch, how):
    """As far as a process can see: the file was synced after its last byte was written."""
    synced, fsync = [], os.fsync

    def watched(descriptor):
        fsync(descriptor)
        seen = os.fstat(descriptor)
        synced.append((seen.st_ino, seen.st_size))

    monkeypatch.setattr(os, "fsync", watched)
    add(path, 4, how=how)
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
@HOW
def test_a_torn_last_line_is_ignored_and_written_over(path, cut, how):
    path.write_bytes(path.read_bytes()[:-cut])
    assert numbers(path) == [1, 2]
    add(path, 4, how=how)
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
    if seen:
        read(path, KINDS)
    add(path, 4)
    path.write_bytes(b"".join(tamper(path.read_bytes().splitlines(keepends=True)[:3])) + b"{}\n")
    with pytest.raises(UseError, match=r"does not follow|is not a ledger entry"):
        read(path, KINDS)


def test_broken_twin_without_the_chain_a_dropped_line_goes_unnoticed(tmp_path):
    path = tmp_path / "plain.jsonl"
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in (1, 3)))
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == [1, 3]
    with pytest.raises(UseError):
        read_entries(path)


def test_a_line_of_another_kind_or_another_type_is_refused(path):
    for kinds, words in (
        ({"other": First}, "is no ledger of a other"),
        ({"first": First}, "line 2 .* of the kind 'number', which no such"),
    ):
        journal._read.clear()
        with pytest.raises(UseError, match=words):
            read(path, kinds)
    add(path, "three")
    journal._read.clear()
    with pytest.raises(UseError, match=r"line . of .*\.n"):
        read(path, {"first": First, "number": Whole})


@dataclass(frozen=True)
class Whole:
    """A line of whole numbers only."""

    kind: ClassVar[str] = "number"

    n: int


def test_a_second_holder_is_refused(tmp_path):
    refusal = FailureError("in use")
    with (
        exclusive(tmp_path / ".lock", refusal=refusal),
        pytest.raises(FailureError, match="in use"),
        exclusive(tmp_path / ".lock", refusal=refusal),
    ):
        pass
    with exclusive(tmp_path / ".lock", refusal=refusal):
        pass


DISK_FULL = """
import resource, signal, sys
from pathlib import Path
from tests.ledger.test_journal import KINDS, Number, add, numbers
from userdp.core.errors import FailureError
from userdp.ledger.journal import JournalWriter

path = Path(sys.argv[1])
add(path, 0)
writer = JournalWriter(path, KINDS)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
acknowledged = 0
try:
    while True:
        writer.append(Number(acknowledged + 1))
        acknowledged += 1
except FailureError as error:
    assert "not released" in str(error)
print(acknowledged, int(numbers(path)[-1]), path.read_bytes()[-1:])
"""


def test_a_full_disk_leaves_the_acknowledged_lines_and_no_half_line(tmp_path):
    assert resource.RLIMIT_FSIZE
    done = subprocess.run(
        [sys.executable, "-c", DISK_FULL, str(tmp_path / "ledger.jsonl")],
        capture_output=True,
        text=True,
        check=True,
    )
    acknowledged, last, end = done.stdout.split()
    assert int(acknowledged) == int(last) > 2
    assert end == r"b'\n'"


ALL_AT_ONCE = """
import sys
from pathlib import Path
from userdp.ledger.lines import Query
from userdp.ledger.store import StoreLedger

folder, name = Path(sys.argv[1]), sys.argv[2]
(folder / f"ready-{name}").touch()
while not (folder / "go").exists():
    pass
ledger = StoreLedger(folder)
ledger.charges()  # what others have half written must not be in the way
ledger.append(Query(run_id=name, name="users", pure_epsilon=0.1))
"""


def test_processes_that_charge_a_new_store_at_the_same_time_are_all_charged(tmp_path):
    names = [f"query-{number}" for number in range(6)]
    command = [sys.executable, "-c", ALL_AT_ONCE, str(tmp_path)]
    processes = [subprocess.Popen([*command, name]) for name in names]
    while not all((tmp_path / f"ready-{name}").exists() for name in names):
        assert all(process.poll() is None for process in processes)
        time.sleep(0.01)
    (tmp_path / "go").touch()
    assert [process.wait() for process in processes] == [0] * len(names)
    assert sorted(charge.run_id for charge in StoreLedger(tmp_path).charges()) == names


@pytest.mark.parametrize("left", [b"", b'{"kind":"store","sche'], ids=["nothing", "half a line"])
def test_a_ledger_whose_first_line_a_kill_cut_short_is_begun_again(tmp_path, left):
    (tmp_path / "ledger.jsonl").write_bytes(left)
    store = StoreLedger(tmp_path)
    assert store.charges() == []
    with pytest.raises(UseError, match="no reservation"):
        settle(store, "one", steps=1)
    query(store, "one", name="users", pure_epsilon=0.1)
    assert [charge.run_id for charge in store.charges()] == ["one"]


def test_what_compose_refuses_is_not_appended(path):
    before = path.read_bytes()

    def refuse(lines):
        raise UseError(f"there are {len(lines)} already")

    with pytest.raises(UseError, match="3 already"):
        append(path, KINDS, refuse)
    assert path.read_bytes() == before


def test_lines_that_were_read_before_are_not_parsed_again(path, monkeypatch):
    """Whoever charges reads a ledger again under its lock, which may be megabytes."""
    read(path, KINDS)
    parsed, right = [], journal.parse
    monkeypatch.setattr(journal, "parse", lambda line: parsed.append(line) or right(line))
    add(path, 4)
    assert numbers(path) == [1, 2, 3, 4]
    assert len(parsed) == 1


def test_a_ledger_that_is_replaced_by_another_is_read_anew(path):
    read(path, KINDS)
    add(path.with_name("other"), 8, 9)
    path.with_name("other").replace(path)
    assert numbers(path) == [8, 9]
    path.write_bytes(b"")
    assert numbers(path) == []


@HOW
@pytest.mark.parametrize("what", ["\udcff", float("nan")], ids=["no UTF-8", "no number"])
def test_a_line_that_no_reader_would_take_is_not_appended(path, how, what):
    """All that was charged before would be lost with it."""
    before = path.read_bytes()
    with pytest.raises(UseError, match=r"nobody could read|must be finite"):
        partial(add, path, 4, what, how=how)() if how == "append" else add(path, what, how=how)
    assert path.read_bytes() == before
    add(path, 4)
    assert numbers(path) == [1, 2, 3, 4]
