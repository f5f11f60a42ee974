"""Both libraries side by side: ε, whether they agree, and calibration."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.accounting.bench import Bench
from benchmarks.accounting.libraries import Row
from benchmarks.accounting.settings import CALIBRATION_EPSILON, CALIBRATION_SAMPLE, Setting
from userdp.accounting.check_by_proof import steps_of
from userdp.accounting.proof import enclose_delta

ROUND_OFF = 1e-13  # dp-accounting's, absolute in δ


def compare(bench: Bench, settings: Iterable[Setting], cap: int) -> list[Row]:
    """ε by both libraries, and whether they agree."""
    rows = []
    for setting in settings:
        mine = bench.measure("ours", setting, "epsilon", cap)
        theirs = bench.measure("dp-accounting", setting, "epsilon", cap)
        row: Row = {"setting": setting.key, "dp_accounting": theirs, "ours": mine}
        if "cpu_seconds" in theirs and "upper" in mine:
            row["speedup"] = theirs["cpu_seconds"] / mine["cpu_seconds"]
        if "epsilon" in theirs and "upper" in mine:
            at_theirs = bench.measure("ours", setting, "delta", cap, epsilon=theirs["epsilon"])
            if "lower" in at_theirs:
                row["excess_delta"] = at_theirs["lower"] - setting.delta
                row["consistent"] = row["excess_delta"] <= ROUND_OFF
                if not row["consistent"]:
                    row |= _ask_the_proof(setting, theirs["epsilon"], at_theirs)
        rows.append(row)
    return rows


def _ask_the_proof(setting: Setting, epsilon: float, ours: Row) -> Row:
    """Who is right where the libraries differ: consistent if our bracket meets the proven one."""
    steps = steps_of(setting.mechanism())
    proven = enclose_delta(steps, epsilon, size=ours["upper"])
    meets = proven.lower <= ours["upper"] and ours["lower"] <= proven.upper
    return {"proven": [proven.lower, proven.upper], "consistent": bool(meets)}


def compare_calibration(bench: Bench, cap: int) -> list[Row]:
    """The least σ by both libraries."""
    rows = []
    for setting in CALIBRATION_SAMPLE:
        extra = {"epsilon": CALIBRATION_EPSILON[setting.key]}
        mine = bench.measure("ours", setting, "calibrate", cap, **extra)
        theirs = bench.measure("dp-accounting", setting, "calibrate", cap, **extra)
        row: Row = {"setting": setting.key, **extra, "dp_accounting": theirs, "ours": mine}
        if "cpu_seconds" in theirs and "sigma" in mine:
            row["speedup"] = theirs["cpu_seconds"] / mine["cpu_seconds"]
        rows.append(row)
    return rows
