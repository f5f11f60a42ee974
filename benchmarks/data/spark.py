"""The part ``spark``: the same corpus prepared by DuckDB and by Spark on one core and on two."""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.data.corpus import write_corpus
from benchmarks.data.running import child, say
from benchmarks.data.stores import SEQ_LEN

_FILES = 8
ENGINES = ("duckdb", "local[2]", "local[1]")


def spark_child(path: str, out: str, engine: str) -> None:
    """Prepare one corpus and print what it took; runs in its own process."""
    if engine != "duckdb":
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--master {engine} pyspark-shell"
        os.environ["PYSPARK_PYTHON"] = sys.executable
    from userdp.data import spark as engines
    from userdp.data.pipeline import Engine, prepare_store
    from userdp.data.sources import open_source
    from userdp.data.store_tokenizer import StoreTokenizer

    spark: dict[str, float] = {"cpu_seconds": 0.0, "java_peak_rss_gb": 0.0}

    session = engines.session

    @contextmanager
    def measured() -> Iterator[Any]:
        with session() as running:
            yield running
            spark.update(_of_spark())

    engines.session = measured
    began = time.perf_counter()
    meta = prepare_store(
        open_source([path]),
        Path(out),
        tokenizer=StoreTokenizer.load(),
        seq_len=SEQ_LEN,
        engine=Engine.DUCKDB if engine == "duckdb" else Engine.SPARK,
    )
    wall = time.perf_counter() - began
    print(
        json.dumps(
            {
                "wall_seconds": wall,
                "cpu_seconds": time.process_time() + spark["cpu_seconds"],
                "driver_peak_rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                "java_peak_rss_gb": spark["java_peak_rss_gb"],
                "content_sha256": meta.content_sha256,
            }
        )
    )


def spark(
    folder: Path, records: int, engines: list[str], *, rounds: int, words_per_text: int
) -> dict[str, Any]:
    """Rounds of all ``engines``, one after another, each in a process of its own."""
    path = folder / "corpus"
    path.mkdir()
    for part in range(_FILES):
        write_corpus(path / f"{part}.jsonl", records // _FILES, part, words_per_text=words_per_text)
    rows: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
    for _ in range(rounds):
        for engine in engines:
            out = folder / "store"
            rows[engine].append(child("--spark", str(path), str(out), engine))
            subprocess.run(["rm", "-rf", str(out)], check=True)
            last = rows[engine][-1]
            say(
                f"{records:>12,} records  {engine:8}  {last['wall_seconds']:7.1f} s  "
                f"processor {last['cpu_seconds']:7.1f} s  "
                f"driver {last['driver_peak_rss_gb']:.2f} GB  "
                f"Java {last['java_peak_rss_gb']:.2f} GB"
            )
    shutil.rmtree(path)
    hashes = {row["content_sha256"] for of in rows.values() for row in of}
    assert len(hashes) == 1, "all engines write the same store"
    return {"records": records, "rows": rows, **ratios(rows)}


def ratios(rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians over rounds of ratios within a round."""
    told: dict[str, Any] = {}
    for measure in ("wall", "cpu"):
        for name, one, other in (
            ("spark_over_duckdb", "local[2]", "duckdb"),
            ("one_core_over_two", "local[1]", "local[2]"),
        ):
            if one in rows and other in rows:
                pairs = zip(rows[one], rows[other], strict=True)
                key = f"{measure}_seconds"
                told[f"{name}_{measure}"] = statistics.median(a[key] / b[key] for a, b in pairs)
    return told


def _of_spark() -> dict[str, float]:
    """Processor time of all that this process started, and the peak memory of Java."""
    ticks = os.sysconf("SC_CLK_TCK")
    below: dict[int, list[int]] = {}
    seconds: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, rest = stat.read_text().split(" (", 1)
        except OSError:  # it ended meanwhile
            continue
        fields = rest.rsplit(") ", 1)[1].split()
        below.setdefault(int(fields[1]), []).append(int(number))
        seconds[int(number)] = sum(map(int, fields[11:15])) / ticks  # with children that ended
    total, peak, frontier = 0.0, 0.0, list(below.get(os.getpid(), []))
    while frontier:
        pid = frontier.pop()
        frontier += below.get(pid, [])
        total += seconds[pid]
        status = Path(f"/proc/{pid}/status").read_text()
        if status.startswith("Name:\tjava"):
            peak = max(peak, int(status.split("VmHWM:")[1].split()[0]) / 2**20)
    return {"cpu_seconds": total, "java_peak_rss_gb": peak}
