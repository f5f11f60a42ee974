"""``python -m benchmarks.faults.many``; see the package."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.faults.crashes import children
from benchmarks.faults.planted import digest_of_source
from benchmarks.faults.table import write_section
from benchmarks.rows import add_options, add_row, whole_rows

_SECONDS = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.many")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="how long they play")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these processes and no others")
    parser.add_argument("--twin", help="with a deliberate fault of the library, see twins.py")
    parser.add_argument("--keep", type=Path, help="play in this folder, and leave it there")
    add_options(
        parser,
        results="docs/results/reliability/many.jsonl",
        skipped="what was played with the same source",
    )
    options = parser.parse_args()
    children.warm()
    from benchmarks.faults.many.campaign import play
    from benchmarks.faults.many.roles import ROLES
    from benchmarks.faults.many.table import section, told

    names = options.only or list(ROLES)
    key = {"digest": digest_of_source()[:16], "seconds": options.seconds, "twin": options.twin}
    key["names"] = names
    kept = [row for row in whole_rows(options.results) if key.items() <= row["key"].items()]
    if not kept:
        with tempfile.TemporaryDirectory(prefix="userdp-many-") as folder:
            place = options.keep or Path(folder)
            place.mkdir(exist_ok=True)
            played = play(place, seconds=options.seconds, names=names, twin=options.twin)
        date, cores = datetime.now(UTC).date().isoformat(), os.cpu_count() or 1
        kept = [{"key": key, "date": date, "cores": cores, **asdict(played)}]
        add_row(options.results, kept[0])
    row = kept[-1]
    print(told(row))
    for problem in row["problems"]:
        print(f"    {problem}")
    if options.page is not None:
        write_section(options.page, section(row))
    return int(bool(row["problems"]))


if __name__ == "__main__":
    sys.exit(main())
