"""``python -m benchmarks.faults.crashes``; see the package."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.faults.crashes import children
from benchmarks.faults.crashes.cases import COMMANDS, case_of
from benchmarks.faults.crashes.table import failures, section, summary, survived, table
from benchmarks.faults.planted import digest_of_source
from benchmarks.faults.table import write_section
from benchmarks.rows import add_options, add_row, whole_rows

_CASES = 525
"""Enough for 500 kills and all errors of the disk."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.crashes")
    parser.add_argument("--cases", type=int, default=_CASES, help="the first so many cases")
    parser.add_argument("--numbers", type=int, nargs="+", help="these cases and no others")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, help="cases of these commands")
    parser.add_argument("--limit", type=int, help="try at most so many; 0 only writes the table")
    skipped = "what was tried with the same source"
    add_options(parser, results="docs/results/reliability/crashes.jsonl", skipped=skipped)
    parser.add_argument("--twin", help="with a deliberate fault of the library, see twins.py")
    options = parser.parse_args()
    cases = [case_of(number) for number in options.numbers or range(options.cases)]
    if options.only:
        cases = [case for case in cases if case.command in options.only]
    source = digest_of_source()[:16]
    known = {row["case"]: row for row in whole_rows(options.results) if row["twin"] == options.twin}
    rows = {case.number: known[case.number] for case in cases if case.number in known}
    current = {number for number, row in rows.items() if row["source"] == source}
    todo = [case for case in cases if case.number not in current]
    # What never was tried, or did not hold, tells most.
    todo.sort(key=lambda case: case.number in rows and survived(rows[case.number]))
    todo = todo[: options.limit]
    if todo:
        children.warm()
        from benchmarks.faults.crashes.trial import Trials

        with tempfile.TemporaryDirectory(prefix="userdp-crashes-") as folder:
            trials = Trials(Path(folder), twin=options.twin)
            for case in todo:
                # A twin that draws noise would have no say under test seeds.
                played = replace(case, seeded=False) if options.twin else case
                key = {"case": case.number, "source": source, "twin": options.twin}
                rows[case.number] = row = {**key, **asdict(trials.try_(played))}
                add_row(options.results, row)
                verdict = "survived" if survived(row) else "FAILED"
                print(f"{verdict} {case.name} ({row['seconds']} s)", file=sys.stderr, flush=True)
    if options.page is not None:
        date, cores = datetime.now(UTC).date().isoformat(), os.cpu_count() or 1
        write_section(options.page, section(rows, date=date, cores=cores))
    print(table(rows))
    print(summary(rows))
    print(failures(rows))
    return int(not all(map(survived, rows.values())))


if __name__ == "__main__":
    sys.exit(main())
