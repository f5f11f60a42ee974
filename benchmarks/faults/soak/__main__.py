"""``python -m benchmarks.faults.soak``; see the package."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.faults.planted import digest_of_source
from benchmarks.faults.soak import people, runs, steps
from benchmarks.faults.soak.table import draw, section, table
from benchmarks.faults.table import write_section
from benchmarks.rows import add_options, add_row, whole_rows

PARTS: dict[str, tuple[Sequence[int], Callable[[Path, int], Iterator[dict[str, Any]]]]] = {
    "steps": (steps.STAGES, steps.rows),
    "runs": (runs.STAGES, runs.rows),
    "users": (people.STAGES, people.of_users),
    "records": (people.STAGES, people.of_records),
}
"""By name: how many of it there are, stage by stage, and what measures a stage."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.soak")
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help="by default all")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--work", type=Path, default=Path("runs/soak"), help="a scratch folder")
    skipped = "stages that were measured with the same source"
    results = "docs/results/reliability/soak.jsonl"
    add_options(parser, results=results, skipped=skipped)
    parser.add_argument("--plot", type=Path, help="draw the steps into this PNG")
    options = parser.parse_args()
    source = digest_of_source()[:16]
    known = list(whole_rows(options.results))
    done = {(row["part"], row["number"]) for row in known if row["source"] == source}
    for part in () if options.table else (options.part or PARTS):
        stages, measure = PARTS[part]
        for stage in stages:
            if (part, stage) in done:
                continue
            measured = []
            for row in measure(options.work / part, stage):
                measured.append({"part": part, "number": stage, "source": source, **row})
                told = f"{row['what']}: {row['cpu']} s, {row['peak']:.0f} MB"
                print(f"{part} {stage:,} {told}", file=sys.stderr, flush=True)
            for row in measured:  # a stage that a kill cut short is measured anew
                add_row(options.results, row)
            known += measured
    newest = _newest(known)
    if options.page is not None:
        date, cores = datetime.now(UTC).date().isoformat(), os.cpu_count() or 1
        write_section(options.page, section(newest, date=date, cores=cores))
    if options.plot is not None:
        draw(newest["steps"], options.plot)
    print(table(newest))
    return 0


def _newest(known: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each part that were measured last, stage by stage."""
    sources = {(row["part"], row["number"]): row["source"] for row in known}
    newest: dict[str, list[dict[str, Any]]] = {}
    for row in known:
        if row["source"] == sources[row["part"], row["number"]]:
            newest.setdefault(row["part"], []).append(row)
    return newest


if __name__ == "__main__":
    sys.exit(main())
