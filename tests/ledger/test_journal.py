import json
import resource
import subprocess
import sys

import pytest

from userdp.errors import FailureError, UseError
from userdp.ledger.journal import JournalWriter, append_entries, exclusive, read_entries


def test_what_was_appended_is_read_back_in_order(tmp_path):
    path = tmp_path / "ledger.jsonl"
    append_entries(path, [{"a": 1}, {"a": 2}])
    append_entries(path, [{"a": 3}])
    assert [entry["a"] for entry in read_entries(path)] == [1, 2, 3]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_ignored_and_trimmed(tmp_path, cut):
    path = tmp_path / "ledger.jsonl"
    append_entries(path, [{"a": 1}, {"a": 2}])
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
def test_a_tampered_ledger_is_noticed(tmp_path, tamper):
    path = tmp_path / "ledger.jsonl"
    append_entries(path, [{"a": 1}, {"a": 2}, {"a": 3}])
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
append_entries(path, [{"n": 0}])
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
