"""``userdp prepare``, ``store stats``: exit status, one clear error, nothing half-written."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.data.corpora import REAL_DATA, corpus, write_jsonl
from tests.speed import fast_then_slow
from userdp.cli.app import run
from userdp.data import meta as layout
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


def test_a_path_that_does_not_exist_and_a_truncated_gzip_are_bad_use(tmp_path, capsys):
    out = ["--out", tmp_path / "store"]
    bad(capsys, tmp_path, "nothing is there", "prepare", tmp_path / "nowhere.jsonl", *out)
    whole = gzip.compress(mail(tmp_path / "mail.jsonl").read_bytes())
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[:-20])
    bad(capsys, tmp_path, "truncated", "prepare", tmp_path / "cut.jsonl.gz", *out)


def test_an_existing_store_is_replaced_only_by_name(tmp_path, capsys):
    source, out = mail(tmp_path / "mail.jsonl"), ["--out", tmp_path / "store"]
    assert userdp(capsys, "prepare", source, *out)[0] == 0
    bad(capsys, tmp_path, "--overwrite", "prepare", source, *out)
    assert userdp(capsys, "prepare", source, *out, "--overwrite", "--seq-len", "16")[0] == 0
    assert UserStore.open(tmp_path / "store").meta.seq_len == 16


def test_a_store_of_another_version_is_bad_use(tmp_path, capsys):
    assert (
        userdp(capsys, "prepare", mail(tmp_path / "m.jsonl"), "--out", tmp_path / "store")[0] == 0
    )
    meta = tmp_path / "store" / layout.META
    meta.write_text(meta.read_text().replace('"format_version": 3', '"format_version": 99'))
    bad(capsys, tmp_path, "format version 99", "store", "stats", tmp_path / "store")
    bad(capsys, tmp_path, "nothing is there", "store", "stats", tmp_path / "nowhere")


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


@pytest.mark.slow
def test_kill_at_random_moments_leaves_the_old_store_or_the_new(tmp_path, capsys):
    source, out = mail(tmp_path / "mail.jsonl", users=200), tmp_path / "store"
    assert userdp(capsys, "prepare", mail(tmp_path / "old.jsonl"), "--out", out)[0] == 0
    command = [sys.executable, "-m", "userdp", "prepare", str(source), "--out", str(out)]
    for wait in (0.3, 0.6, 0.8, 1.0):
        child = subprocess.Popen([*command, "--overwrite", "--json"], stdout=subprocess.DEVNULL)
        time.sleep(wait)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert UserStore.open(out).users in (20, 200)
    assert userdp(capsys, "prepare", source, "--out", out, "--overwrite")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mail.jsonl", "old.jsonl", "store"]


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


def test_docstrings_are_prepared_from_one_command(tmp_path, capsys):
    arguments = ["prepare", "rich", "--source", "docstrings", "--set", "input.max_users=15"]
    status, out, _ = userdp(capsys, *arguments, "--out", tmp_path / "store", "--json")
    made = json.loads(out)
    assert status == 0
    assert made["totals"]["users"] <= 15
    assert made["sources"][0]["packages"]["rich"]


def test_real_shakespeare_goes_through_prepare_and_stats(tmp_path, capsys):
    path = REAL_DATA / "shakespeare.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{os.path.relpath(path)} is not on this machine: not part of the repository")
    short = tmp_path / "short.jsonl"
    with gzip.open(path, "rb") as lines:
        short.write_bytes(b"".join(line for line, _ in zip(lines, range(2000), strict=False)))
    status, out, _ = userdp(capsys, "prepare", short, "--out", tmp_path / "store", "--json")
    totals = json.loads(out)["totals"]
    assert (status, totals["records_read"], totals["records_stored"]) == (0, 2000, 2000)
    assert userdp(capsys, "store", "stats", tmp_path / "store")[0] == 0
