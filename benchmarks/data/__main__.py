"""``python -m benchmarks.data``; see the package."""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import benchmarks.data
from benchmarks.data.corpus import WORDS_PER_TEXT
from benchmarks.data.draw import draw
from benchmarks.data.flat import flat
from benchmarks.data.gather import COHORT, gather
from benchmarks.data.grouper import grouper
from benchmarks.data.scale import prepare_child, scale
from benchmarks.data.spark import ENGINES, spark, spark_child
from benchmarks.data.user_lines import group_child

PARTS = ("scale", "spark", "grouper", "gather", "draw", "flat")


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Where it ran."""

    cores: int
    load: float
    python: str


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data", description=benchmarks.data.__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 3, 10, 30])
    parser.add_argument(
        "--words", type=int, default=WORDS_PER_TEXT, help="of the median text of the part scale"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--folder", type=Path, help="for working files; needs 15 GB at 30 M")
    parser.add_argument("--prepare", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3, help="of the part spark")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), help="of the part spark")
    parser.add_argument("--group", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--spark", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prepare:
        prepare_child(*options.prepare)
        return
    if options.spark:
        spark_child(*options.spark)
        return
    if options.group:
        group_child(*options.group)
        return
    quick: bool = options.quick
    sizes = [20_000, 60_000] if quick else [round(1e6 * m) for m in options.millions]
    machine = Machine(cores=os.cpu_count() or 1, load=os.getloadavg()[0],
                      python=platform.python_version())  # fmt: skip
    result: dict[str, Any] = {"quick": quick, "machine": asdict(machine)}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        runs: dict[str, Callable[[], Any]] = {
            "scale": lambda: scale(folder, sizes, words_per_text=options.words),
            "spark": lambda: [
                spark(
                    folder,
                    size,
                    options.engines,
                    rounds=options.rounds,
                    words_per_text=options.words,
                )
                for size in sizes
            ],
            "grouper": lambda: grouper(
                folder, *((20_000, 1_000) if quick else (1_000_000, 100_000))
            ),
            "gather": lambda: gather(folder, 512 if quick else 2 * COHORT, 3 if quick else 5),
            "draw": lambda: draw(
                folder,
                [10**4, 10**5] if quick else [10**5, 10**6, 10**7],
                10**6 if quick else 10**8,
                5 if quick else 15,
            ),
            "flat": lambda: flat(folder, 500 if quick else 10_000),
        }
        for part in options.parts:
            if quick and part == "grouper" and "BEAM_PYTHON" not in os.environ:
                continue
            if part == "spark" and options.parts == list(PARTS):
                continue
            result[part] = runs[part]()
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
