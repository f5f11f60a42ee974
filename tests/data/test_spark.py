"""Spark makes the store that one process makes; kills leave all or nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.data.corpora import REAL_DATA, corpus, interleaved, problems_of, view, write_jsonl
from userdp.cli.app import run
from userdp.core.errors import FailureError, UseError
from userdp.data.pipeline import prepare_store
from userdp.data.sources import open_source
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore

pytest.importorskip("pyspark", reason="the extra spark is not installed")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java", allow_module_level=True)

from userdp.data import spark as job

WAIT = 300
LAYOUT = ("store_id", "states", "files")
"""What two stores of the same content may differ in."""
UNUSABLE = [
    b"\xff", b"", b"{", {"user": "a"}, {"user": "c", "text": " "}, {"user": ["e", "f"], "text": ""},
    {"user": "k", "text": "l"}, {"user": ["g", "h"], "text": "i j"},
    {"user": "m", "text": "It ends <|endoftext|> here, says who wants to end it."},
]  # fmt: skip


@pytest.fixture(scope="module")
def session():
    """One Spark for all tests, that is found active: starting it takes seconds."""
    with job.session() as spark:
        yield spark


def mixed(folder: Path, users: int = 60) -> Path:
    """JSON Lines with everything that is dropped, of several owners, and with a special token."""
    texts = interleaved(corpus(users))
    rows: list[object] = [{"user": r.user.decode(), "text": r.text.decode()} for r in texts]
    for place, odd in enumerate(UNUSABLE * 5):
        rows.insert(place * 7 % len(rows), odd)
    return write_jsonl(folder / "mixed.jsonl", rows)


def talks(folder: Path) -> Path:
    texts = interleaved(corpus(30))
    rows = [
        {"user": r.user.decode(), "prompt": r.text.decode(), "completion": r.text.decode()[::-1]}
        for r in texts
    ]
    return write_jsonl(folder / "talk.jsonl", rows)


def made(path: Path, out: Path, engine: str, **options: object) -> dict[str, object]:
    """What the store that ``engine`` makes says of itself, but for its layout."""
    words = StoreTokenizer.load()
    options = {"seq_len": 8, **options}
    meta = prepare_store(
        open_source([str(path)]), out, tokenizer=words, engine=engine, **options
    ).to_dict()
    return {name: value for name, value in meta.items() if name not in LAYOUT}


@pytest.mark.slow
@pytest.mark.parametrize("source", [mixed, talks])
@pytest.mark.parametrize("part", [1, 2**24])
def test_both_engines_make_the_same_store(session, tmp_path, monkeypatch, source, part):
    """Of one file of records or of many; also where the store lies at an odd path."""
    monkeypatch.setattr(job, "_PART_BYTES", part)
    monkeypatch.setattr("userdp.data.records.BLOCK_RECORDS", 100)
    path, odd = source(tmp_path), tmp_path / "a: %20 [s]tore{1}*?"
    expected = made(path, tmp_path / "duckdb", "duckdb", split="first-part")
    assert made(path, odd, "spark", split="first-part") == expected
    assert view(UserStore.open(odd)) == view(UserStore.open(tmp_path / "duckdb"))
    assert not problems_of(odd)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shakespeare", "commits"])
def test_real_records_give_the_same_store(session, tmp_path, name):
    source = REAL_DATA / f"{name}.jsonl.gz"
    if not source.exists():
        pytest.skip(f"{source.name} is not beside the repository")
    one, other = (made(source, tmp_path / e, e, seq_len=128) for e in ("duckdb", "spark"))
    assert one == other


@pytest.mark.slow
def test_twin_tokens_that_come_in_another_order_give_another_store(session, tmp_path, monkeypatch):
    path, whole = mixed(tmp_path), job.tokenized_by_spark
    monkeypatch.setattr("userdp.data.records.BLOCK_RECORDS", 100)
    expected = made(path, tmp_path / "duckdb", "duckdb")["content_sha256"]
    for name, order, equal in (("same", 1, True), ("back", -1, False)):
        monkeypatch.setattr(
            "userdp.data.pipeline.tokenized_by_spark", lambda *a, by=order: list(whole(*a))[::by]
        )
        assert (made(path, tmp_path / name, "spark")["content_sha256"] == expected) is equal


@pytest.mark.slow
def test_twin_tokens_that_are_lost_break_the_books(session, tmp_path, monkeypatch):
    """Their records are counted as read, and stored nowhere."""
    whole = job.tokenized_by_spark
    monkeypatch.setattr(
        "userdp.data.pipeline.tokenized_by_spark", lambda *a: (b[1:] for b in whole(*a))
    )
    with pytest.raises(FailureError, match="books do not balance"):
        made(mixed(tmp_path), tmp_path / "store", "spark")
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "error", "words"),
    [
        (lambda part, tokens: 1 // 0, FailureError, "Spark failed"),
        (lambda part, tokens: UseError("cannot encode"), UseError, "cannot encode"),
    ],
)
def test_a_spark_that_fails_leaves_no_store(session, tmp_path, monkeypatch, task, error, words):
    """An error of ours comes back as it is."""
    path = mixed(tmp_path)
    monkeypatch.setattr(job, "tokenize_part", task)
    with pytest.raises(error, match=words):
        made(path, tmp_path / "store", "spark")
    assert [one.name for one in tmp_path.iterdir()] == ["mixed.jsonl"]


def test_without_java_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UseError, match="needs Java"):
        next(job.tokenized_by_spark(len, [], tmp_path))


def java_of(pid: int) -> int | None:
    """The Java that a process started, once it is Spark's."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rsplit(") ", 1)[1].split()[1])
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"SparkSubmit" in command and b"launcher.Main" not in command and parent == pid:
            return int(entry.name)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["userdp", "Spark"])
def test_a_killed_driver_leaves_no_store(tmp_path, killed):
    """By SIGKILL while Spark runs; then DuckDB makes the store and removes what is left."""
    source, store = mixed(tmp_path, 600), tmp_path / "store"
    command = ["prepare", str(source), "--out", str(store)]
    process = subprocess.Popen(
        [sys.executable, "-m", "userdp", *command, "--engine", "spark"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while (java := java_of(process.pid)) is None:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.03)
    os.kill(process.pid if killed == "userdp" else java, signal.SIGKILL)
    _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == (-signal.SIGKILL if killed == "userdp" else 1)
    assert not store.exists()
    if killed == "Spark":
        assert "preparing with Spark failed" in " ".join(errors.split())
    deadline = time.monotonic() + WAIT
    while Path(f"/proc/{java}/cmdline").exists() and Path(f"/proc/{java}/cmdline").read_bytes():
        assert time.monotonic() < deadline  # it ends with its driver
        time.sleep(0.1)
    assert run(command) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mixed.jsonl", "store"]
