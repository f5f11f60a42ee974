"""``python -m benchmarks.faults.drawn``; see the package."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.faults.drawn.draw import drawn
from benchmarks.faults.drawn.positions import Mutant
from benchmarks.faults.drawn.survivors import read_survivors
from benchmarks.faults.drawn.table import section, summary, table
from benchmarks.faults.drawn.trials import LIMIT, Verdict, Worker, digest_of_test
from benchmarks.faults.planted import PACKAGE, ROOT, digest_of_text
from benchmarks.faults.table import write_section
from benchmarks.rows import add_options, add_row, whole_rows

RESULTS = "docs/results/reliability/mutants-drawn.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.drawn")
    add_options(parser, results=RESULTS, skipped="what was tried in the same module")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants and no others")
    parser.add_argument("--again", action="store_true", help="try also what survived, once more")
    parser.add_argument("--limit", type=int, help="try at most so many; 0 only writes the table")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="workers")
    words = "processor time of the tests of one mutant"
    parser.add_argument("--seconds", type=float, default=LIMIT, help=words)
    options = parser.parse_args()
    parts = drawn()
    known = _rows(options.results, parts)
    # Of all parts in turn, so that a campaign that is stopped has tried a part of each.
    turns = [
        (number / len(mutants), part, one)
        for part, mutants in parts.items()
        for number, one in enumerate(mutants)
    ]
    wanted = [(part, one) for _, part, one in sorted(turns, key=lambda turn: turn[0])]
    if options.only is not None:
        wanted = [(part, one) for part, one in wanted if one.name in options.only]
    todo = [
        (part, one)
        for part, one in wanted
        if one.name not in known
        or not known[one.name]["tests"]  # the map may know a test by now
        or (options.again and known[one.name]["verdict"] != Verdict.KILLED)
        or options.only is not None
    ]
    todo = todo[: options.limit]
    begin, done, failed = time.monotonic(), 0, 0
    forks = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(options.processes, mp_context=forks) as workers:
        trials = {workers.submit(_tried, options.seconds, one): (part, one) for part, one in todo}
        for trial in as_completed(trials):
            part, one = trials[trial]
            try:
                known[one.name] = trial.result() | {"part": part}
            except RuntimeError as error:  # of one mutant; the others are tried all the same
                _tell(f"{one.name} could not be tried: {error}")
                failed += 1
                continue
            add_row(options.results, known[one.name])
            done += 1
            left = (time.monotonic() - begin) / done * (len(todo) - done) / 60
            told = f"{known[one.name]['verdict']:<8} {one.name} {one.file}:{one.lines[0]}"
            _tell(f"{done}/{len(todo)} {told}, {left:.0f} min left")
    reasons = read_survivors()
    if options.page is not None:
        date, cores = datetime.now(UTC).date().isoformat(), os.cpu_count() or 1
        write_section(options.page, section(parts, known, reasons, date=date, cores=cores))
    print(table(parts, known))
    print(summary(parts, known, reasons))
    return int(failed > 0)


@cache
def _worker(seconds: float) -> Worker:
    """One in each process."""
    return Worker(seconds)


def _tried(seconds: float, mutant: Mutant) -> dict[str, Any]:
    worker = _worker(seconds)
    module = digest_of_text(worker.sound(mutant))
    values = asdict(mutant) | asdict(worker.try_(mutant))
    return {"name": mutant.name, "module": module, **values}


def _rows(path: Path, parts: Mapping[str, tuple[Mutant, ...]]) -> dict[str, dict[str, Any]]:
    """The last row of each mutant whose module, and the test that noticed it, are unchanged."""
    mutants = {one.name: one for mutants in parts.values() for one in mutants}
    found = {}
    for one in whole_rows(path):
        mutant = mutants.get(one["name"])
        if mutant is None or one["module"] != _digest(mutant.file):
            continue
        if one["test"] is not None and digest_of_test(one["test"]) != one["test_digest"]:
            found.pop(one["name"], None)
            continue
        found[one["name"]] = one
    return found


@cache
def _digest(file: str) -> str:
    return digest_of_text((ROOT / "src" / PACKAGE / file).read_text("utf-8"))


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
