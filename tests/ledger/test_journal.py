import json
import os
import resource
import subprocess
import sys
import time
from functools import partial

import pytest

from userdp.errors import FailureError, UseError
from userdp.ledger import journal
from userdp.ledger.journal import JournalWriter, append_entries, exclusive, read_entries, read_first
from userdp.ledger.run import SCHEMA
from userdp.ledger.store import StoreLedger


def test_what_was_appended_is_read_back_in_order(tmp_path):
    path = tmp_path / "ledger.jsonl"
    append_entries(path, lambda _: [{"a": 1}, {"a": 2}])
    append_entries(path, lambda _: [{"a": 3}])
    assert [entry["a"] for entry in read_entries(path)] == [1, 2, 3]


def test_the_first_entry_is_read_alone_and_nothing_of_the_others_is_kept(tmp_path):
    """A run asks for its id at each checkpoint; its ledger has a line a step."""
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"")
    assert read_first(path) == {}
    append_entries(path, lambda _: [{"a": 1}, {"a": 2}])
    journal._read.clear()
    path.write_bytes(path.read_bytes() + b"no line of a journal\n")
    assert read_first(path) == {"a": 1}
    assert path not in journal._read
    path.write_bytes(path.read_bytes().replace(b"0000", b"1111", 1))
    with pytest.raises(UseError, match=r"line 1 of .* does not follow"):
        read_first(path)


def test_the_first_entry_has_its_shape_when_it_is_read_alone(tmp_path, monkeypatch):
    """Whoever writes a journal without userdp can give any line a right hash."""
    path = tmp_path / "ledger.jsonl"
    first = {"kind": "run", "schema": SCHEMA, "run_id": ["of", "another", "type"]}
    with monkeypatch.context() as unasked:
        unasked.setattr(journal, "require_shapes", lambda *asked, **options: None)
        append_entries(path, lambda _: [first])
    with pytest.raises(UseError, match="run_id"):
        read_first(path)


@pytest.mark.parametrize("how", ["append_entries", "JournalWriter"])
def test_invariant_7_a_line_is_on_the_disk_when_it_is_acknowledged(tmp_path, monkeypatch, how):
    """As far as a process can see: the file was synced after its last byte was written."""
    path = tmp_path / "ledger.jsonl"
    append_entries(path, lambda _: [{"n": 0}])
    synced, fsync = [], os.fsync

    def watched(descriptor):
        fsync(descriptor)
        seen = os.fstat(descriptor)
        synced.append((seen.st_ino, seen.st_size))

    monkeypatch.setattr(os, "fsync", watched)
    if how == "append_entries":
        append_entries(path, lambda _: [{"n": 1}])
    else:
        writer = JournalWriter(path)
        writer.append({"n": 1})
        writer.close()
    assert (path.stat().st_ino, path.stat().st_size) in synced


@pytest.mark.parametrize("left", [None, b"", b'{"n": 1'])
def test_invariant_7_the_files_name_is_on_the_disk_before_its_first_line_is_written(
    tmp_path, monkeypatch, left
):
    """Also where somebody made the file, and was killed before its name was on the disk."""
    path = tmp_path / "ledger.jsonl"
    if left is not None:
        path.write_bytes(left)
    synced, sync = [], journal.sync

    def watched(folder):
        sync(folder)
        synced.append((folder, path.read_bytes()))

    monkeypatch.setattr(journal, "sync", watched)
    append_entries(path, lambda _: [{"n": 0}])
    append_entries(path, lambda _: [{"n": 1}])
    assert synced == [(tmp_path, left or b"")]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_ignored_and_trimmed(tmp_path, cut):
    path = tmp_path / "ledger.jsonl"
    append_entries(path, lambda _: [{"a": 1}, {"a": 2}])
    path.write_bytes(path.read_bytes()[:-cut])
    assert [entry["a"] for entry in read_entries(path)] == [1]
    writer = JournalWriter(path)
    writer.append({"a": 3})
    writer.close()
    assert [entry["a"] for entry in read_entries(path)] == [1, 3]


def edited(lines):
    return [lines[0].replace(b'"a":1', b'"a":9'), *lines[1:]]


@pytest.mark.parametrize(
    "tamper",
    [edited, lambda lines: [lines[0], lines[2]], lambda lines: [lines[1], lines[0], lines[2]]],
    ids=["edited", "dropped", "re-ordered"],
)
def test_invariant_1_a_tampered_ledger_is_noticed(tmp_path, tamper):
    path = tmp_path / "ledger.jsonl"
    append_entries(path, lambda _: [{"a": 1}, {"a": 2}, {"a": 3}])
    path.write_bytes(b"".join(tamper(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(UseError, match="does not follow"):
        read_entries(path)


def test_broken_twin_without_the_chain_a_dropped_line_goes_unnoticed(tmp_path):
    path = tmp_path / "plain.jsonl"
    path.write_text("".join(json.dumps({"a": n}) + "\n" for n in (1, 3)))
    assert [json.loads(line)["a"] for line in path.read_text().splitlines()] == [1, 3]
    with pytest.raises(UseError):
        read_entries(path)


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
from userdp.errors import FailureError
from userdp.ledger.journal import JournalWriter, append_entries, read_entries

path = Path(sys.argv[1])
append_entries(path, lambda _: [{"n": 0}])
writer = JournalWriter(path)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
acknowledged = 0
try:
    while True:
        writer.append({"n": acknowledged + 1})
        acknowledged += 1
except FailureError as error:
    assert "not released" in str(error)
print(acknowledged, [entry["n"] for entry in read_entries(path)][-1], path.read_bytes()[-1:])
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
import sys, time
from pathlib import Path
from userdp.ledger.journal import append_entries, read_entries
from userdp.ledger.history import SCHEMA
from userdp.ledger.store import StoreLedger

folder, name, way = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
(folder / f"ready-{name}").touch()
while not (folder / "go").exists():
    pass
if way == "under the lock":
    ledger = StoreLedger(folder)
    ledger.charges()  # what others have half written must not be in the way
    ledger.query(name, name="users", pure_epsilon=0.1)
else:
    path = folder / "ledger.jsonl"
    head = [] if path.exists() else [{"kind": "store", "schema": SCHEMA}]
    time.sleep(0.01)
    line = {"kind": "query", "run_id": name, "name": "users", "pure_epsilon": 0.1, "base": None}
    append_entries(path, lambda _: [*head, line])
"""


def charged_by_processes(folder, way, *, count=6):
    command = [sys.executable, "-c", ALL_AT_ONCE, str(folder)]
    names = [f"query-{number}" for number in range(count)]
    processes = [subprocess.Popen([*command, name, way]) for name in names]
    while not all((folder / f"ready-{name}").exists() for name in names):
        assert all(process.poll() is None for process in processes)
        time.sleep(0.01)
    (folder / "go").touch()
    assert [process.wait() for process in processes] == [0] * count
    return sorted(charge.run_id for charge in StoreLedger(folder).charges()) == names


def test_processes_that_charge_a_new_store_at_the_same_time_are_all_charged(tmp_path):
    assert charged_by_processes(tmp_path, "under the lock")


@pytest.mark.slow
def test_broken_twin_who_looks_for_the_ledger_before_the_lock_spoils_it(tmp_path):
    with pytest.raises(UseError, match="unknown kind"):
        charged_by_processes(tmp_path, "before the lock")


@pytest.mark.parametrize("left", [b"", b'{"kind":"store","sche'], ids=["nothing", "half a line"])
def test_a_ledger_whose_first_line_a_kill_cut_short_is_begun_again(tmp_path, left):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(left)
    store = StoreLedger(tmp_path)
    assert store.charges() == []
    with pytest.raises(UseError, match="no reservation"):
        store.settle("one", steps=1)
    store.query("one", name="users", pure_epsilon=0.1)
    assert [charge.run_id for charge in store.charges()] == ["one"]


def test_what_compose_refuses_is_not_appended(tmp_path):
    path = tmp_path / "ledger.jsonl"
    append_entries(path, lambda entries: [{"a": len(entries)}])
    before = path.read_bytes()

    def refuse(entries):
        raise UseError(f"there are {len(entries)} already")

    with pytest.raises(UseError, match="1 already"):
        append_entries(path, refuse)
    assert path.read_bytes() == before


def test_lines_that_were_read_before_are_not_parsed_again(tmp_path, monkeypatch):
    """One command reads a ledger some twenty times, which may be megabytes."""
    path = tmp_path / "ledger.jsonl"
    append_entries(path, lambda _: [{"n": n} for n in range(50)])
    read_entries(path)
    parsed, right = [], journal.parse
    monkeypatch.setattr(journal, "parse", lambda line: parsed.append(line) or right(line))
    append_entries(path, lambda _: [{"n": 50}])
    assert [entry["n"] for entry in read_entries(path)] == list(range(51))
    assert len(parsed) == 1


@pytest.mark.parametrize("place", [0, 20, 48])
def test_invariant_1_a_line_that_is_edited_after_it_was_read_is_noticed(tmp_path, place):
    path = tmp_path / "ledger.jsonl"
    append_entries(path, lambda _: [{"n": n} for n in range(50)])
    read_entries(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[place] = lines[place].replace(b'"n":', b'"m":')
    path.write_bytes(b"".join(lines))
    with pytest.raises(UseError, match="does not follow"):
        read_entries(path)


def test_an_entry_that_its_reader_changes_is_read_as_it_stands_in_the_file(tmp_path):
    path = tmp_path / "ledger.jsonl"
    append_entries(path, lambda _: [{"n": 1}])
    read_entries(path)[0]["n"] = 2
    assert read_entries(path) == [{"n": 1}]


def test_a_ledger_that_is_replaced_by_another_is_read_anew(tmp_path):
    path, other = tmp_path / "ledger.jsonl", tmp_path / "other.jsonl"
    append_entries(path, lambda _: [{"n": n} for n in range(3)])
    append_entries(other, lambda _: [{"m": n} for n in range(2)])
    read_entries(path)
    other.replace(path)
    assert read_entries(path) == [{"m": 0}, {"m": 1}]
    path.write_bytes(b"")
    assert read_entries(path) == []


UNREADABLE = {"a name in other bytes than UTF-8": {"n": "\udcff"}, "no number": {"n": float("nan")}}


@pytest.mark.parametrize("how", ["append_entries", "JournalWriter"])
@pytest.mark.parametrize("what", UNREADABLE)
def test_a_line_that_no_reader_would_take_is_not_appended(tmp_path, how, what):
    """All that was charged before would be lost with it."""
    path = tmp_path / "ledger.jsonl"
    append_entries(path, lambda _: [{"n": 1}])
    before = path.read_bytes()
    if how == "append_entries":
        append = partial(append_entries, path, lambda _: [{"n": 2}, UNREADABLE[what]])
    else:
        append = partial(JournalWriter(path).append, UNREADABLE[what])
    with pytest.raises(UseError, match="nobody could read"):
        append()
    assert path.read_bytes() == before
    append_entries(path, lambda _: [{"n": 2}])
    assert read_entries(path) == [{"n": 1}, {"n": 2}]
