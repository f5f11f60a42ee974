"""See `benchmarks.cost`."""

from __future__ import annotations

import argparse

import torch

from benchmarks.allocator import begin_again_keeping
from benchmarks.cost.fit import fit
from benchmarks.cost.predict import predicted
from benchmarks.cost.settings import HELD
from benchmarks.cost.standing import PREDICTED, require_unmeasured
from benchmarks.faults.planted import digest_of_source
from benchmarks.paper_size.settings import MEASURED
from benchmarks.rows import add_row, whole_rows
from userdp.errors import UseError


def main() -> None:
    parser = argparse.ArgumentParser(description="see benchmarks/cost/__init__.py")
    parser.add_argument("what", choices=["fit", "predict"])
    parser.add_argument(
        "--only", nargs="+", choices=[setting.key for setting in HELD], help="settings, of predict"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "fit":
        begin_again_keeping()
        print(fit())
        return
    source = digest_of_source()
    done = {row["setting"] for row in whole_rows(PREDICTED)}
    for setting in HELD:
        if setting.key not in done and (not args.only or setting.key in args.only):
            try:
                require_unmeasured(setting, MEASURED)
            except UseError as error:
                parser.error(f"{error.message}\nhint: {error.hint}")
            row = predicted(setting, source=source)
            add_row(PREDICTED, row)
            print(row, flush=True)


if __name__ == "__main__":
    main()
