"""``python -m benchmarks.audit_study``; see the package."""

from __future__ import annotations

import argparse
from pathlib import Path

import benchmarks.audit_study
from benchmarks.audit_study.figure import draw
from benchmarks.audit_study.report import tables
from benchmarks.audit_study.setting import TEXTS, WHOLE
from benchmarks.audit_study.stores import prepare
from benchmarks.audit_study.study import run
from papers.studies.runs import read_rows

RESULTS = Path("docs/results")


def main() -> None:
    assert benchmarks.audit_study.__doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.audit_study",
        description=benchmarks.audit_study.__doc__.splitlines()[0],
    )
    parser.add_argument("stage", choices=("prepare", "run", "report"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--work", type=Path, default=Path("runs/audit-study"))
    parser.add_argument("--base", type=Path, default=Path("runs/surface/base/model"))
    parser.add_argument("--results", type=Path, default=RESULTS / "audit.jsonl")
    parser.add_argument("--png", type=Path, default=RESULTS / "audit.png")
    texts = [*TEXTS, WHOLE]
    parser.add_argument("--only", choices=texts, nargs="+", default=texts)
    parser.add_argument("--long", action="store_true", help="the two long runs of a text alone")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.stage == "prepare":
        prepare(options.work, options.data)
        return
    if options.stage == "run":
        import torch

        torch.set_num_threads(options.threads)
        run(
            options.work,
            options.base.resolve(),
            options.results,
            options.only,
            only_long=options.long,
        )
        return
    rows = read_rows(options.results)
    draw(rows, options.png)
    print(tables(rows))


if __name__ == "__main__":
    main()
