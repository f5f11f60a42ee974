"""See `benchmarks.cost`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from benchmarks.cost.fit import fit
from benchmarks.cost.measure import measured, peak_here
from benchmarks.cost.predict import predicted
from benchmarks.cost.settings import HELD
from benchmarks.rows import add_row, whole_rows

PREDICTED = Path("docs/results/cost-predicted.jsonl")
MEASURED = Path("docs/results/cost-measured.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description="see benchmarks/cost/__init__.py")
    parser.add_argument("what", choices=["fit", "predict", "measure", "peak"])
    parser.add_argument("arguments", nargs="*", help="of peak: a setting and a method")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="settings, of predict and measure")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "fit":
        print(fit())
        return
    if args.what == "peak":
        print(peak_here(*args.arguments))
        return
    path = PREDICTED if args.what == "predict" else MEASURED
    done = {row["setting"] for row in whole_rows(path)}
    for setting in HELD:
        if setting.key in done or (args.only and setting.key not in args.only):
            continue
        row = predicted(setting) if args.what == "predict" else measured(setting, args.rounds)
        add_row(path, row)
        print(row, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
