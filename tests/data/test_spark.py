"""Spark groups as DuckDB does: the same records in the same order, the same store, or none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.data.corpora import REAL_DATA, corpus, interleaved, write_jsonl
from userdp.cli.app import run
from userdp.data import spark as spark_module
from userdp.data.columns import in_columns
from userdp.data.prepare import prepare_store
from userdp.data.records import Record
from userdp.data.sources import open_source
from userdp.data.spark import SparkGrouping
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.data.writer import StoreWriter
from userdp.errors import FailureError, UseError

pytest.importorskip("pyspark", reason="the extra spark is not installed")
if spark_module.shutil.which("java") is None:
    pytest.skip("Spark needs Java", allow_module_level=True)


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """One Spark for all tests here: starting it takes seconds."""
    with spark_module._session(tmp_path_factory.mktemp("spark"), heap=2**29) as spark:
        spark.conf.set("spark.sql.shuffle.partitions", "4")
        spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
        yield spark


def write_corpus(folder: Path, users: int) -> Path:
    rows = [
        {"user": record.user.decode(), "text": record.text.decode()}
        for record in interleaved(corpus(users))
    ]
    return write_jsonl(folder / "records.jsonl", rows)


def hash_of(source: Path, out: Path, engine: str, **options: object) -> str:
    meta = prepare_store(
        open_source([str(source)]),
        out,
        tokenizer=StoreTokenizer.load(),
        engine=engine,
        **options,
    )
    return meta.content_sha256


@pytest.mark.slow
def test_records_come_out_sorted_by_user_bytes_and_order(session, tmp_path, monkeypatch):
    """Bytes are compared as unsigned numbers, places as numbers, and nothing is lost."""
    users = [b"\xff", b"\x7f", b"\x80", b"a", b"a\x00", b"ab", b"", "日本".encode()]
    records = [
        Record(users[n * 7 % 8], b"text %d" % n * (n % 5), 1000 - n, n % 3 == 0, pieces)
        for n in range(1000)
        for pieces in [((n, n + 1),) if n % 4 == 0 else None]
    ]
    expected = sorted(records, key=lambda record: (record.user, record.order))
    with SparkGrouping(tmp_path) as grouping:
        assert grouping.add(in_columns(records)) == len(records)
        got = [record for batch in grouping.batches(records=64) for record in batch]
        assert got == expected
        assert len([f for f in grouping.files if f.suffix == ".parquet"]) > 1
        for skip in (1, 64, 640, 1000):
            rest = [record for batch in grouping.batches(skip=skip) for record in batch]
            assert rest == expected[skip:]
        for batch in grouping.batches(size=100):
            assert sum(len(record.text) for record in list(batch)[:-1]) < 100
    monkeypatch.setattr(spark_module, "_sort", None)
    with SparkGrouping(tmp_path) as again:  # after a kill: what is sorted is read
        assert [record for batch in again.batches() for record in batch] == expected


@pytest.mark.slow
def test_no_records_make_no_batches(session, tmp_path):
    with SparkGrouping(tmp_path) as grouping:
        assert grouping.add([]) == 0
        assert list(grouping.batches()) == []


@pytest.mark.slow
def test_the_store_has_the_same_content_hash_wherever_it_lies(session, tmp_path):
    """Also where Spark would see an escape or a pattern in the path."""
    source = write_corpus(tmp_path, 60)
    expected = hash_of(source, tmp_path / "duckdb", "duckdb")
    assert hash_of(source, tmp_path / "a %20 [s]tore{1}*?", "spark") == expected


@pytest.mark.slow
def test_twin_an_engine_that_sorts_otherwise_gives_another_hash(session, tmp_path, monkeypatch):
    source = write_corpus(tmp_path, 60)
    expected = hash_of(source, tmp_path / "duckdb", "duckdb")
    wrong = spark_module._SORTED.replace("ORDER BY `user`, place", "ORDER BY `user`, text")
    assert wrong != spark_module._SORTED
    monkeypatch.setattr(spark_module, "_SORTED", wrong)
    assert hash_of(source, tmp_path / "spark", "spark") != expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shakespeare", "commits"])
def test_real_records_give_the_same_content_hash(session, tmp_path, name):
    source = REAL_DATA / f"{name}.jsonl.gz"
    if not source.exists():
        pytest.skip(f"{source.name} is not beside the repository")
    hashes = {engine: hash_of(source, tmp_path / engine, engine) for engine in ("duckdb", "spark")}
    assert hashes["duckdb"] == hashes["spark"]


@pytest.mark.slow
def test_a_spark_that_fails_leaves_no_store(session, tmp_path, monkeypatch):
    source = write_corpus(tmp_path, 10)
    monkeypatch.setattr(spark_module, "_SORTED", "SELECT nothing FROM {records}")
    with pytest.raises(FailureError, match="Spark failed"):
        hash_of(source, tmp_path / "store", "spark")
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


@pytest.mark.slow
def test_a_kill_after_sorting_is_gone_on_with_and_spark_does_not_run_again(
    session, tmp_path, monkeypatch
):
    source = write_corpus(tmp_path, 40)
    expected = hash_of(source, tmp_path / "at once", "spark")
    with monkeypatch.context() as kill:  # nothing is cleaned up
        kill.setattr(StoreWriter, "__exit__", lambda self, *_: os.close(self._lock))
        kill.setattr(SparkGrouping, "batches", None)
        with pytest.raises(TypeError):
            hash_of(source, tmp_path / "store", "spark")
    assert not (tmp_path / "store").exists()
    monkeypatch.setattr(SparkGrouping, "add", None)
    assert hash_of(source, tmp_path / "store", "spark") == expected
    assert not list(tmp_path.glob(".*"))


def test_a_path_that_spark_cannot_read_is_refused(tmp_path):
    with pytest.raises(UseError, match="may not have a colon"):
        SparkGrouping(tmp_path / "a:b")


def test_without_java_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(spark_module.shutil, "which", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UseError, match="needs Java"):
        SparkGrouping(tmp_path)


def spark_under(pid: int) -> list[int]:
    """The processes of Spark among the descendants of ``pid``."""
    parents, names = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, rest = stat.read_text().split(" (", 1)
        except OSError:
            continue
        name, fields = rest.rsplit(") ", 1)
        parents[int(number)], names[int(number)] = int(fields.split()[1]), name
    found, frontier = [], [pid]
    while frontier:
        here = frontier.pop()
        below = [child for child, parent in parents.items() if parent == here]
        found += [child for child in below if names[child] == "java" and is_spark(child)]
        frontier += below
    return found


def is_spark(pid: int) -> bool:
    try:  # a launcher, which finds out how to start it, comes before
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"SparkSubmit" in command and b"launcher.Main" not in command
    except OSError:
        return False


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["userdp", "Spark"])
def test_a_killed_spark_job_leaves_no_store(tmp_path, killed):
    """By SIGKILL, as soon as Spark runs; then the same command makes the store."""
    source = write_corpus(tmp_path, 40)
    store = tmp_path / "store"
    command = ["prepare", str(source), "--out", str(store), "--engine", "spark"]
    process = subprocess.Popen(
        [sys.executable, "-m", "userdp", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    java: list[int] = []
    while not (java := spark_under(process.pid)):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    time.sleep(1.0)
    os.kill(process.pid if killed == "userdp" else java[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == (-signal.SIGKILL if killed == "userdp" else 1)
    assert not store.exists()
    if killed == "Spark":
        assert "grouping records by user with Spark failed" in " ".join(errors.split())
        assert "Traceback" not in errors
    deadline = time.monotonic() + 120
    while any(map(is_running, java)):  # Spark ends with the process that started it
        assert time.monotonic() < deadline
        time.sleep(0.1)
    if killed == "userdp":
        assert run([*command[:-1], "duckdb"]) == 0
        assert len(UserStore.open(store).meta.content_sha256) == 64
        assert sorted(path.name for path in tmp_path.iterdir()) == ["records.jsonl", "store"]
