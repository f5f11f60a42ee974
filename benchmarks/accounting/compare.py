"""Both libraries side by side: ε, whether they agree, and calibration."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from benchmarks.accounting.bench import Bench
from benchmarks.accounting.libraries import Row
from benchmarks.accounting.settings import CALIBRATION_EPSILON, CALIBRATION_SAMPLE, Setting

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
                    row |= _ask_mpmath(bench, setting, theirs["epsilon"], at_theirs)
        rows.append(row)
    return rows


def _ask_mpmath(bench: Bench, setting: Setting, epsilon: float, ours: Row) -> Row:
    """Who is right where the libraries differ: consistent if our bracket holds mpmath's δ."""
    from tests.accounting import oracle

    name = f"mpmath delta {setting.key} {epsilon!r}"
    if name not in bench.journal.known:
        print(f"{name} ...", file=sys.stderr, flush=True)
        truth = 0.0
        for direction in ("remove", "add"):
            try:
                answer = oracle.delta(
                    direction,
                    epsilon,
                    steps=setting.steps,
                    p=setting.sampling_probability,
                    sigma=setting.noise_multiplier,
                    group_size=setting.group_size,
                    at_least=ours["lower"] / 1e3,
                )
            except ArithmeticError as error:
                if direction == "add" and "below every guess" in str(error):
                    continue  # far below the other direction
                return {"mpmath": str(error)}
            truth = max(truth, float(answer.value))
        bench.journal.add(name, {"delta": truth})
    truth = bench.journal.known[name]["delta"]
    return {"mpmath": truth, "consistent": bool(ours["lower"] <= truth <= ours["upper"])}


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
