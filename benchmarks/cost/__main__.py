"""See `benchmarks.cost`."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.cost.fit import fit
from benchmarks.cost.predict import predicted
from benchmarks.cost.settings import HELD
from benchmarks.rows import add_row, whole_rows

PREDICTED = Path("docs/results/cost-predicted.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description="see benchmarks/cost/__init__.py")
    parser.add_argument("what", choices=["fit", "predict"])
    parser.add_argument("--only", nargs="*", help="settings, of predict")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "fit":
        print(fit())
        return
    done = {row["setting"] for row in whole_rows(PREDICTED)}
    for setting in HELD:
        if setting.key not in done and (not args.only or setting.key in args.only):
            row = predicted(setting)
            add_row(PREDICTED, row)
            print(row, flush=True)


if __name__ == "__main__":
    main()
