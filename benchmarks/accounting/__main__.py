"""``python -m benchmarks.accounting``; see the package."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

import benchmarks.accounting
from benchmarks.accounting import corners, lines
from benchmarks.accounting.bench import Bench, Journal
from benchmarks.accounting.compare import compare, compare_calibration
from benchmarks.accounting.libraries import Row
from benchmarks.accounting.prove import FILE as PROOF_FILE
from benchmarks.accounting.prove import prove
from benchmarks.accounting.settings import TABLE, Setting, random_settings
from benchmarks.accounting.summary import summarise
from benchmarks.accounting.tables import show
from benchmarks.accounting.worker import serve


def main() -> int:
    campaigns = {"lines": lines.main, "corners": corners.main}
    if sys.argv[1:2] and sys.argv[1] in campaigns:
        return campaigns[sys.argv[1]](sys.argv[2:])
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accounting", description=benchmarks.accounting.__doc__
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="a sample that ends within 50 s")
    parser.add_argument("--settings", type=int, help="random settings of our own (default 300)")
    parser.add_argument("--compare", type=int, help="random settings to compare (default 30)")
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=["compare", "calibrate", "own"],
        default=["compare", "calibrate", "own"],
        help="which of the three parts to run",
    )
    parser.add_argument("--results", type=Path, help="JSON lines: append, and skip what is there")
    parser.add_argument("--cap", type=int, default=120, help="seconds for a call of either library")
    parser.add_argument("--calibration-cap", type=int, default=900, help="seconds, calibration")
    parser.add_argument("--worker", choices=["ours", "dp-accounting"], help=argparse.SUPPRESS)
    parser.add_argument(
        "part", nargs="?", choices=["prove"], help="prove: enclose random settings by balls"
    )
    options = parser.parse_args()
    if options.part == "prove":
        return prove(options.settings or 300, options.results or PROOF_FILE)
    if options.worker:
        serve(options.worker)
        return 0

    started = time.monotonic()
    bench = Bench(Journal(options.results), started + 36 if options.quick else math.inf)
    count = options.settings or (20 if options.quick else 300)
    compared_count = options.compare or (0 if options.quick else 30)

    own: list[tuple[Setting, Row]] = []
    compared: list[Row] = []
    calibrated: list[Row] = []
    if "own" in options.parts:
        cap = 3 if options.quick else 60
        own = [(s, bench.measure("ours", s, "epsilon", cap)) for s in random_settings(count, 3)]
    if "compare" in options.parts:
        table = [TABLE[0], TABLE[4]] if options.quick else TABLE
        compared = compare(bench, [*table, *random_settings(compared_count, 30)], options.cap)
    if "calibrate" in options.parts and not options.quick:
        calibrated = compare_calibration(bench, options.calibration_cap)
    bench.ours.close()

    summary = summarise(compared, calibrated, own, bench.skipped)
    summary["seconds"] = round(time.monotonic() - started, 1)
    show(summary)
    if options.json:
        print(json.dumps(summary))
    return 1 if summary["agreement_failures"] or summary["own_failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
