"""Write `golden_deltas.json`: δ(ε) of 40 compositions, both directions, by the mpmath oracle.

    python -m tests.accounting.make_golden

Each case is written as it is done; cases already in the file are skipped, so the run may be
interrupted and taken up again. It takes some minutes on one core.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import mpmath
import numpy as np

from tests.accounting import oracle

FILE = Path(__file__).with_name("golden_deltas.json")

# (steps, p, sigma, group_size, epsilon). δ runs from 1e-3 to 1e-100.
CASES: list[tuple[int, float, float, int, float]] = [
    # dp-accounting 0.6.0 says (444.3452988, 1.26e-9)-DP here; δ there is 1.26001e-9.
    (301, 0.177504, 1.1994, 8, 444.3452988),
    # and (1.4695194246296042, 3.4625e-11)-DP here, where δ is 3.5038e-11
    (7445, 0.000177168, 1.04679, 11, 1.4695194246296042),
    # one step
    (1, 1e-6, 0.3, 1, 5.535),
    (1, 0.5, 1.0, 1, 20.902),
    (1, 0.01, 30.0, 512, 0.55385),
    (1, 1e-4, 0.3, 8, 8.01),
    (1, 0.3, 2.0, 64, 285.78),
    # two steps
    (2, 0.1, 1.0, 4, 4.7813),
    (2, 1e-3, 0.5, 8, 38.451),
    (2, 0.9, 3.0, 16, 183.89),
    # full participation
    (1, 1.0, 1.0, 1, 4.8),
    (1000, 1.0, 100.0, 8, 20.0),
    (1000000, 1.0, 50.0, 1, 610.0),
    # few steps, or few participations
    (10, 0.5, 2.0, 1, 3.9596),
    (10, 0.2, 0.8, 4, 66.778),
    (50, 0.05, 1.0, 2, 6.8333),
    (6, 0.5, 2.5, 1, 2.5),
    (100, 0.3, 0.3, 512, 1.4026e7),
    (100, 0.01, 5.0, 32, 1.8982),
    (500, 0.02, 0.6, 1, 15.006),
    (1000, 0.001, 0.7, 64, 30.0),
    # the table of six settings
    (2000, 0.01, 1.0, 1, 2.9552459),
    (2000, 0.01, 1.0, 8, 34.8906956),
    (2000, 0.01, 1.0, 16, 90.9012057),
    (2000, 0.01, 0.5, 8, 208.326293),
    (2000, 0.01, 2.0, 32, 66.8337342),
    (10000, 1e-4, 1.0, 128, 9.3492028),
    # a small ε, where dp-accounting's default grid is loose
    (3798, 0.000335, 6.0738, 1, 0.01),
    # many steps, tiny δ, wide groups
    (5000, 0.005, 0.8, 1, 44.302),
    (10000, 0.01, 10.0, 512, 1590.3),
    (100000, 0.001, 1.0, 1, 2.1909),
    (100000, 1e-5, 0.5, 16, 20.0),
    (1000000, 1e-4, 1.0, 1, 0.5587),
    (1000000, 1e-6, 2.0, 64, 0.02),
    (1000000, 0.001, 3.0, 4, 16.427),
    (200000, 0.5, 100.0, 1, 17.78),
    (1000, 0.1, 20.0, 1, 3.3921),
    (300, 0.9, 0.5, 3, 6326.2),
    (20000, 0.002, 1.5, 256, 2403.9),
    (100000, 1e-4, 100.0, 512, 0.57602),
]


def _one(direction: oracle.Direction, case: tuple[int, float, float, int, float]) -> dict[str, Any]:
    steps, p, sigma, group_size, epsilon = case
    try:
        answer = oracle.delta(
            direction, epsilon, steps=steps, p=p, sigma=sigma, group_size=group_size
        )
    except ArithmeticError as error:
        return {"delta": None, "why": str(error)}
    return {
        "delta": mpmath.nstr(answer.value, 22, min_fixed=0, max_fixed=0),
        "method": answer.method,
        "agreement": answer.agreement,
    }


def main() -> None:
    made = {
        "command": "python -m tests.accounting.make_golden",
        "python": platform.python_version(),
        "mpmath": mpmath.__version__,
        "numpy": np.__version__,
        "digits": oracle.DIGITS,
    }
    cases = json.loads(FILE.read_text())["cases"] if FILE.exists() else []
    known = {tuple(c[k] for k in ("steps", "p", "sigma", "group_size", "epsilon")) for c in cases}
    for case in CASES:
        if case in known:
            continue
        start = time.perf_counter()
        row = dict(zip(("steps", "p", "sigma", "group_size", "epsilon"), case, strict=True))
        row |= {"remove": _one("remove", case), "add": _one("add", case)}
        row["seconds"] = round(time.perf_counter() - start, 1)
        cases.append(row)
        FILE.write_text(json.dumps({"made": made, "cases": cases}, indent=1) + "\n")
        print(row, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
