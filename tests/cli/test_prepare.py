"""``userdp prepare``, ``store stats``: exit status, one clear error, nothing half-written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.corpora import corpus, write_jsonl
from tests.speed import fast_then_slow
from userdp.cli.app import run
from userdp.data.store import UserStore


def userdp(capsys, *arguments) -> tuple[int, str, str]:
    status = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def mail(path: Path, users: int = 20) -> Path:
    rows = [
        {"user": user.decode(), "text": text}
        for user, texts in corpus(users).items()
        for text in texts
    ]
    return write_jsonl(path, rows)


def test_prepare_then_stats_tell_the_same_totals_as_json(tmp_path, capsys):
    source = mail(tmp_path / "mail.jsonl")
    status, out, _ = userdp(capsys, "prepare", source, "--out", tmp_path / "store", "--json")
    made = json.loads(out)
    assert status == 0
    assert made["totals"]["records_read"] == len(source.read_text().splitlines())
    assert made["store_id"] == UserStore.open(tmp_path / "store").meta.store_id
    status, out, _ = userdp(capsys, "store", "stats", tmp_path / "store", "--json")
    told = json.loads(out)
    assert status == 0
    assert told["operator_only"] is True
    assert (told["users"], told["examples"]) == (20, made["totals"]["examples"])


def test_both_tables_name_every_drop_and_say_that_numbers_are_operator_only(tmp_path, capsys):
    source = write_jsonl(
        tmp_path / "mail.jsonl", [{"user": "a", "text": "kept"}, {"text": "nobody's"}, "broken"]
    )
    commands = (
        ["prepare", source, "--out", tmp_path / "store", "--held-out-users", "0"],
        ["store", "stats", tmp_path / "store"],
    )
    for command in commands:
        status, out, err = userdp(capsys, *command)
        assert (status, err) == (0, "")
        assert "no user field" in out
        assert "not valid JSON" in out
        assert "perator-only" in out
        assert "nobody" not in out


def bad(capsys, folder: Path, words: str, *arguments) -> None:
    """The call exits with 2, says one error with ``words``, and leaves the folder as it was."""
    before = sorted(folder.rglob("*"))
    status, out, err = userdp(capsys, *arguments)
    assert (status, out) == (2, ""), err
    assert err.count("error:") == 1
    assert words in " ".join(err.split())
    assert "Traceback" not in err
    assert sorted(folder.rglob("*")) == before


BAD_INPUT = {
    "missing user field": ([{"text": "a"}, {"text": "b"}], "no record has the field 'user'"),
    "missing text field": ([{"user": "a", "body": "b"}], "fields there: 'user', 'body'"),
    "no users": ([{"user": "", "text": "a"}, {"user": None, "text": "b"}], "nothing to store"),
    "empty text": (
        [{"user": "a", "text": ""}, {"user": "b", "text": " "}],
        "can be used (empty text)",
    ),
    "no lines": ([], "no records"),
    "binary": ([b"\x00\x01\x02PK"], "binary file"),
    "prose": (["Once upon a time"], "JSON object"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_bad_use(tmp_path, capsys, name):
    rows, words = BAD_INPUT[name]
    source = write_jsonl(tmp_path / "mail.jsonl", rows)
    bad(capsys, tmp_path, words, "prepare", source, "--out", tmp_path / "store")


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from userdp.cli.app import run
sys.exit(run(sys.argv[2:]))
"""


@pytest.mark.parametrize("size", fast_then_slow([0, 4_096, 20_000, 110_000, 290_000]))
def test_a_full_disk_is_a_failure_that_leaves_the_old_store(tmp_path, capsys, size):
    source, out = mail(tmp_path / "mail.jsonl", users=400), tmp_path / "store"
    assert userdp(capsys, "prepare", mail(tmp_path / "old.jsonl"), "--out", out)[0] == 0
    before = sorted(tmp_path.rglob("*"))
    identity = UserStore.open(out).meta.store_id
    arguments = ["prepare", str(source), "--out", str(out), "--overwrite"]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(size), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.rglob("*")) == before
    assert UserStore.open(out).meta.store_id == identity


def test_users_and_text_never_reach_the_terminal(tmp_path, capsys):
    rows = [{"user": "SECRETUSER", "text": "SECRETTEXT"}, '{"user": "SECRETUSER", "text": SECRET']
    source = write_jsonl(tmp_path / "mail.jsonl", rows)
    for command in (
        ["prepare", source, "--out", tmp_path / "store"],
        ["store", "stats", tmp_path / "store"],
    ):
        for extra in ([], ["--json"]):
            again = ["--overwrite"] if command[0] == "prepare" else []
            status, out, err = userdp(capsys, *command, *again, *extra)
            assert status == 0
            assert "SECRET" not in out + err
