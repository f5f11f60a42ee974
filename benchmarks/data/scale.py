"""The part ``scale``: corpora of growing size, prepared, and a line through them."""

from __future__ import annotations

import json
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data.corpus import PAPER_RECORDS, write_corpus
from benchmarks.data.running import child, say
from benchmarks.data.stages import Clock
from benchmarks.data.stores import SEQ_LEN


def prepare_child(path: str, out: str) -> None:
    """Prepare one corpus and print what it took; runs in its own process."""
    from userdp.data import pipeline as stages
    from userdp.data.grouping import Grouping
    from userdp.data.pipeline import prepare_store
    from userdp.data.sources import open_source
    from userdp.data.store_tokenizer import StoreTokenizer
    from userdp.data.writer import StoreWriter

    clock = Clock()
    for kind, method, stage in (
        (Grouping, "sort", "sorting"),
        (stages, "tokenized", "tokenizing"),
        (stages, "write_examples", "cutting and splitting"),
        (StoreWriter, "write", "writing"),
        (StoreWriter, "finish", "finishing"),
    ):
        setattr(kind, method, clock.wrap(stage, getattr(kind, method)))
    for where, iterated, stage in (
        (stages, "in_blocks", "reading"),
        (Grouping, "batches", "fetching"),
    ):
        setattr(where, iterated, clock.iterate(stage, getattr(where, iterated)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, cpu = time.perf_counter(), time.process_time()
    meta = prepare_store(
        open_source([path]), Path(out), tokenizer=StoreTokenizer.load(), seq_len=SEQ_LEN
    )
    print(
        json.dumps(
            {
                "wall_seconds": time.perf_counter() - began,
                "cpu_seconds": time.process_time() - cpu,
                "seconds": clock.seconds,
                "peak_rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                "rss_after_import_gb": before / 2**20,
                "totals": {k: meta.totals[k] for k in ("users", "examples", "tokens")},
            }
        )
    )


def scale(folder: Path, sizes: list[int], *, words_per_text: int) -> dict[str, Any]:
    rows = []
    for records in sizes:
        path, out = folder / "corpus.jsonl", folder / "store"
        began = time.perf_counter()
        size = write_corpus(path, records, words_per_text=words_per_text)
        row: dict[str, Any] = {
            "records": records,
            "bytes": size,
            "generating": time.perf_counter() - began,
        }
        row |= child("--prepare", str(path), str(out))
        rows.append(row)
        say(
            f"{records:>12,} records  {row['wall_seconds']:8.1f} s  "
            f"peak {row['peak_rss_gb']:.2f} GB  "
            + "  ".join(f"{name} {s:.1f}" for name, s in row["seconds"].items())
        )
        path.unlink()
        subprocess.run(["rm", "-rf", str(out)], check=True)
    return {"rows": rows, **extrapolated(rows)}


def extrapolated(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A line through (records, seconds) of each stage, at the paper's size; and its fit."""
    if len(rows) < 2:
        return {}
    size = np.array([row["records"] for row in rows], dtype=float)
    hours, worst = {}, {}
    for name in rows[0]["seconds"]:
        seconds = np.array([row["seconds"][name] for row in rows])
        # Relative errors count alike at every size.
        slope = float(np.sum(seconds / size) / len(size))
        hours[name] = slope * PAPER_RECORDS / 3600
        worst[name] = float(np.max(np.abs(seconds / (slope * size) - 1)))
    dominant = max(hours, key=lambda name: hours[name])
    return {
        "hours_at_135_8_m": hours,
        "hours_at_135_8_m_wall": per_record(rows) * PAPER_RECORDS / 3600,
        "wall_seconds_of_all": sum(row["wall_seconds"] for row in rows),
        "wall_microseconds_per_record": 1e6 * per_record(rows),
        "worst_relative_departure_from_line": worst,
        "dominant_stage": dominant,
        "dominant_share": hours[dominant] / sum(hours.values()),
        "peak_rss_gb": max(row["peak_rss_gb"] for row in rows),
    }


def per_record(rows: list[dict[str, Any]]) -> float:
    """Wall seconds per record; relative errors count alike at every size."""
    return float(np.mean([row["wall_seconds"] / row["records"] for row in rows]))
