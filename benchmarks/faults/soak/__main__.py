"""``python -m benchmarks.faults.soak``; see the package."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.faults.planted import digest_of_source
from benchmarks.faults.soak import people, runs, steps
from benchmarks.faults.soak.table import draw, section, table
from benchmarks.faults.table import write_section
from benchmarks.rows import add_options, add_row, whole_rows

PARTS: dict[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
    "steps": steps.rows,
    "runs": runs.rows,
    "users": people.of_users,
    "records": people.of_records,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.soak")
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help="all of them by default")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--work", type=Path, default=Path("runs/soak"), help="a scratch folder")
    skipped = "parts that were measured with the same source"
    results = "docs/results/reliability/soak.jsonl"
    add_options(parser, results=results, skipped=skipped)
    parser.add_argument("--plot", type=Path, help="draw the steps into this PNG")
    options = parser.parse_args()
    source = digest_of_source()[:16]
    known = list(whole_rows(options.results))
    for part in () if options.table else (options.part or PARTS):
        if any(row["part"] == part and row["source"] == source and row["whole"] for row in known):
            continue
        measured = []
        for row in PARTS[part](options.work / part):
            measured.append({"part": part, "source": source, "whole": False, **row})
            told = {name: value for name, value in row.items() if name != "samples"}
            print(f"{part}: {told}", file=sys.stderr, flush=True)
        measured[-1]["whole"] = True
        for row in measured:
            add_row(options.results, row)
            known.append(row)
    newest = _newest(known)
    if options.page is not None:
        date, cores = datetime.now(UTC).date().isoformat(), os.cpu_count() or 1
        write_section(options.page, section(newest, date=date, cores=cores))
    if options.plot is not None:
        draw(newest["steps"], options.plot)
    print(table(newest))
    return 0


def _newest(known: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The last rows of each part that is whole."""
    newest = {}
    for part in PARTS:
        rows = [row for row in known if row["part"] == part]
        sources = [row["source"] for row in rows if row["whole"]]
        if sources:
            newest[part] = [row for row in rows if row["source"] == sources[-1]]
    return newest


if __name__ == "__main__":
    sys.exit(main())
