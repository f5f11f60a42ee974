"""Runs the designs of the papers' studies, in the order of their rank; goes on where it stopped.

    python -m benchmarks.papers prepare --commits FILE --shakespeare FILE
    python -m benchmarks.papers run [NAME ...] [--minutes 60] [--part 0/2]
    python -m benchmarks.papers rest            # what is missing of each design
    python -m benchmarks.papers page            # docs/results/findings.md

``prepare`` makes the stores of both texts, and puts the base model of all designs beside them; with
``--base-again`` it makes that anew: a decoder of 3 layers of width 96 that reads the docstrings of
packages for 4,000 steps (40 minutes of one core).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from papers.studies.campaign import Places, missing_runs, run_design
from papers.studies.design import Design, read_declared, read_design
from papers.studies.page import page, trained, written
from userdp.cli.app import run as userdp
from userdp.errors import UseError

RESULTS = Path("docs/results/papers")
DESIGNS = Path("papers/designs")
PAGE = Path("docs/results/findings.md")
SEQ_LEN = 64
PACKAGES = [
    "stdlib",
    "numpy",
    "scipy",
    "pyarrow",
    "torch",
    "transformers",
    "matplotlib",
    "sympy",
    "pandas",
    "networkx",
    "datasets",
    "peft",
    "accelerate",
    "pyspark",
]
BASE = [
    "--privacy",
    "none",
    "--model",
    "new",
    "--layers",
    "3",
    "--width",
    "96",
    "--heads",
    "4",
    "--micro-batch",
    "16",
    "--learning-rate",
    "3e-3",
    "--warmup-steps",
    "100",
    "--schedule",
    "cosine",
    "--weight-decay",
    "0.1",
    "--steps",
    "4000",
    "--batch-size",
    "64",
    "--checkpoint-every",
    "500",
    "--evaluate-every",
    "500",
]


def designs(names: list[str]) -> list[Design]:
    """The designs of these names; all of them, in the order of ``rank.txt``, if none is given."""
    ranked = (DESIGNS / "rank.txt").read_text(encoding="utf-8").split()
    return [read_design(DESIGNS / f"{name}.toml") for name in names or ranked]


def prepare(work: Path, sources: dict[str, Path], *, again: bool) -> None:
    """Stores and base model; what is there stays. ``again``: make the base model anew."""
    work.mkdir(parents=True, exist_ok=True)
    apart = ["--seq-len", str(SEQ_LEN), "--held-out-examples", "0"]
    for name, path in sources.items():
        if not (work / name).exists():
            _do(["prepare", str(path), "--out", str(work / name), *apart])
    if again and not (work / "public").exists():
        source = ["--source", "docstrings", "--held-out-users", "0.02"]
        _do(["prepare", *PACKAGES, "--out", str(work / "public"), *source, *apart])
    base = work / "bases" / "docstrings"
    if not again and not base.exists():
        shutil.copytree(RESULTS / "base", base)
    if not (base / "model").exists():
        resume = ["--resume"] if (base / "resume.json").exists() else []
        _do(["train", str(work / "public"), "--out", str(base), *BASE, *resume])


def _do(arguments: list[str]) -> None:
    status = userdp(arguments)
    if status:
        raise SystemExit(status)


def places(work: Path) -> Places:
    return Places(
        texts=work, bases=work / "bases", work=work / f"run-{os.getpid()}", results=RESULTS
    )


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=("prepare", "run", "rest", "page"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="designs; all of them by default")
    parser.add_argument("--work", type=Path, default=Path("runs/papers"))
    parser.add_argument("--commits", type=Path)
    parser.add_argument("--shakespeare", type=Path)
    parser.add_argument("--base-again", action="store_true", help="train the base model anew")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after that")
    parser.add_argument("--part", default="0/1", help="of several processes: NUMBER/OF")
    options = parser.parse_args()
    if options.stage == "prepare":
        if options.commits is None or options.shakespeare is None:
            parser.error("prepare reads --commits and --shakespeare")
        prepare(
            options.work,
            {"commits": options.commits, "shakespeare": options.shakespeare},
            again=options.base_again,
        )
        return
    if options.stage == "page":
        entries = {**trained(RESULTS), **written(Path("papers/findings.toml"))}
        head = Path("papers/findings-head.txt").read_text(encoding="utf-8")
        PAGE.write_text(page(entries, head=head), encoding="utf-8")
        return
    where = places(options.work)
    number, parts = map(int, options.part.split("/"))
    declared = read_declared(DESIGNS)
    until = time.monotonic() + 60 * options.minutes
    for design in designs(options.names):
        if options.stage == "rest":
            rows = where.rows(design)
            missing = len(missing_runs(design, rows, list(design.groups())))
            print(
                f"{design.name:24} {len(rows):4} of {design.runs:4} runs, {missing} can be run now"
            )
            continue
        try:
            done = run_design(
                design,
                declared,
                where,
                until=until,
                part=(number, parts),
                say=lambda text: print(text, file=sys.stderr, flush=True),
            )
        except UseError as error:
            print(f"{design.name}: {error.message}", file=sys.stderr, flush=True)
            continue
        if not done:
            return


if __name__ == "__main__":
    main()
