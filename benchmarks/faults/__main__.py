"""``python -m benchmarks.faults``; see the package."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.faults.planted import digest_of_source, read_faults
from benchmarks.faults.table import section, summary, table, write_section
from benchmarks.faults.verdicts import Trials, Verdict, is_heavy
from benchmarks.rows import add_options, add_row, whole_rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these faults and no others")
    skipped = "what was tried with the same source and tests"
    add_options(parser, results="docs/results/reliability/faults.jsonl", skipped=skipped)
    parser.add_argument("--limit", type=int, help="try at most so many; 0 only writes the table")
    options = parser.parse_args()
    faults = [one for one in read_faults() if options.only is None or one.name in options.only]
    if not faults:
        parser.error(f"no fault is named {', '.join(options.only)}")
    known = _rows(options.results)
    source = digest_of_source()
    digests = {fault.name: fault.digest(source) for fault in faults}
    todo = [fault for fault in faults if (fault.name, digests[fault.name]) not in known]
    todo = sorted(todo, key=is_heavy)[: options.limit]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="userdp-faults-") as folder:
        trials = Trials(Path(folder)) if todo else None
        for number, fault in enumerate(todo):
            assert trials is not None
            key = {"name": fault.name, "digest": digests[fault.name]}
            row: dict[str, Any] = {**key, **asdict(trials.try_(fault))}
            known[fault.name, row["digest"]] = row
            add_row(options.results, row)
            left = (time.monotonic() - begin) / (number + 1) * (len(todo) - number - 1)
            told = f"{number + 1}/{len(todo)} {row['verdict']:<8} {fault.name}"
            _tell(f"{told}, {left / 60:.0f} min left")
    rows = {name: row for (name, digest), row in known.items() if digests.get(name) == digest}
    if options.page is not None:
        date, cores = datetime.now(UTC).date().isoformat(), os.cpu_count() or 1
        write_section(options.page, section(faults, rows, date=date, cores=cores))
    print(table(faults, rows))
    print(summary(faults, rows))
    return int(any(row["verdict"] != Verdict.KILLED for row in rows.values()))


def _rows(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """By fault and digest; errors are tried again."""
    rows = (row for row in whole_rows(path) if row["verdict"] != Verdict.ERROR)
    return {(row["name"], row["digest"]): row for row in rows}


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
