"""Real processes that are killed: Spark tries a task again, and a killed driver leaves no store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.data.corpora import corpus, interleaved, write_jsonl
from userdp.cli.app import run
from userdp.data.prepare import prepare_store
from userdp.data.sources import open_source
from userdp.data.spark import SparkJob
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.data.verify import verify_store

WAIT = 300
NO_RETRY = {"PYSPARK_SUBMIT_ARGS": "--master local[1] pyspark-shell",
            "PYSPARK_PYTHON": sys.executable}  # fmt: skip


def write_corpus(folder: Path, users: int) -> Path:
    rows = [
        {"user": record.user.decode(), "text": record.text.decode()}
        for record in interleaved(corpus(users, longest=400))
    ]
    return write_jsonl(folder / "records.jsonl", rows)


def started(source: Path, store: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    command = ["prepare", str(source), "--out", str(store), "--engine", "spark"]
    return subprocess.Popen(
        [sys.executable, "-m", "userdp", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def under(pid: int) -> list[int]:
    """The descendants of a process."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, rest = stat.read_text().split(" (", 1)
        except OSError:
            continue
        parents[int(number)] = int(rest.rsplit(") ", 1)[1].split()[1])
    found, frontier = [], [pid]
    while frontier:
        here = frontier.pop()
        below = [child for child, parent in parents.items() if parent == here]
        found += below
        frontier += below
    return found


def is_spark(pid: int) -> bool:
    try:  # a launcher, which finds out how to start it, comes before
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"SparkSubmit" in command and b"launcher.Main" not in command


def writes_tokens(pid: int) -> bool:
    """Whether a process has a file of an attempt at a task open."""
    try:
        files = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]  # noqa: PTH115 (what it links to may be gone)
    except OSError:
        return False
    return any("/files/tokens/" in file for file in files)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


def first(process: subprocess.Popen[str], wanted: Callable[[int], bool]) -> int:
    """The first descendant of ``process`` that is ``wanted``."""

    def found() -> Iterator[int]:
        while process.poll() is None:
            yield from filter(wanted, under(process.pid))
            time.sleep(0.03)

    pid = next(found(), None)
    assert pid is not None, process.stderr.read()
    return pid


@pytest.mark.slow
@pytest.mark.parametrize("again", [True, False])
def test_a_task_whose_process_is_killed_is_tried_again(tmp_path, again):
    """By SIGKILL, in the middle of a part. Twin: a Spark that tries once ends, with no store."""
    source, store = write_corpus(tmp_path, 600), tmp_path / "store"
    process = started(source, store, {} if again else NO_RETRY)
    worker = first(process, writes_tokens)
    os.kill(worker, signal.SIGKILL)
    _, errors = process.communicate(timeout=WAIT)
    if not again:
        assert process.returncode == 1
        assert "preparing with Spark failed" in " ".join(errors.split())
        assert "Traceback" not in errors
        assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]
        return
    assert process.returncode == 0, errors
    whole = prepare_store(
        open_source([str(source)]), tmp_path / "whole", tokenizer=StoreTokenizer.load()
    )
    made = UserStore.open(store).meta
    assert (made.content_sha256, made.totals) == (whole.content_sha256, whole.totals)
    assert verify_store(store).ok
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["userdp", "Spark"])
def test_a_killed_driver_leaves_no_store(tmp_path, killed):
    """By SIGKILL, in the middle of a part; then DuckDB makes the store and removes what is left."""
    source, store = write_corpus(tmp_path, 600), tmp_path / "store"
    process = started(source, store, {})
    first(process, writes_tokens)
    everything = under(process.pid)
    java = next(filter(is_spark, everything))
    os.kill(process.pid if killed == "userdp" else java, signal.SIGKILL)
    _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == (-signal.SIGKILL if killed == "userdp" else 1)
    assert not store.exists()
    if killed == "Spark":
        assert "preparing with Spark failed" in " ".join(errors.split())
        assert "/userdp/" not in errors  # a thread of pyspark's own may print its traceback
    deadline = time.monotonic() + WAIT
    while any(map(is_running, everything)):  # all that Spark started ends with its driver
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert run(["prepare", str(source), "--out", str(store), "--engine", "duckdb"]) == 0
    assert len(UserStore.open(store).meta.content_sha256) == 64
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records.jsonl", "store"]


@pytest.mark.slow
def test_a_killed_run_goes_on_with_what_is_read(session, small, tmp_path, monkeypatch):
    source = open_source([str(write_corpus(tmp_path, 40))])

    def made(out: Path) -> str:
        words = StoreTokenizer.load()
        return prepare_store(source, out, tokenizer=words, engine="spark").content_sha256

    def interrupted(self, tokenizer, **options):
        raise KeyboardInterrupt

    expected = made(tmp_path / "at once")
    with monkeypatch.context() as kill:
        kill.setattr(SparkJob, "tokens", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path / "store")
    assert not (tmp_path / "store").exists()
    monkeypatch.setattr(SparkJob, "read", None)
    assert made(tmp_path / "store") == expected
    assert not list(tmp_path.glob(".*"))
