"""The figures of a run, and what counts in them."""

from __future__ import annotations

import platform
import statistics
from collections import Counter
from importlib import metadata

import numpy as np

from benchmarks.accounting.libraries import Row
from benchmarks.accounting.settings import TABLE, Setting

SLOW_SECONDS = 5.0  # dp-accounting's slow cases


def summarise(
    compared: list[Row], calibrated: list[Row], own: list[tuple[Setting, Row]], skipped: int
) -> Row:
    """The figures, under keys that say what they are."""
    table_keys = {s.key for s in TABLE}
    counted = [
        r
        for r in compared
        if "speedup" in r
        and (r["setting"] in table_keys or r["dp_accounting"]["cpu_seconds"] > SLOW_SECONDS)
    ]
    done = [(s, r) for s, r in own if "upper" in r]
    times = sorted(1e3 * r["cpu_seconds"] for _, r in done)
    wide = [
        s.key
        for s, r in done
        if not r["upper"] - r["lower"] <= 1e-6 * max(r["upper"], 1e-3) or r["note"]
    ]
    slowest = sorted(done, key=lambda pair: -pair[1]["cpu_seconds"])[:10]

    def median(values: list[float]) -> float | None:
        return statistics.median(values) if values else None

    return {
        "speedup_epsilon_median": median([r["speedup"] for r in counted]),
        "speedup_epsilon_min": min((r["speedup"] for r in counted), default=None),
        "speedup_epsilon_cases": len(counted),
        "speedup_epsilon_capped_cases": sum("capped" in r["dp_accounting"] for r in counted),
        "speedup_calibration_median": median([r["speedup"] for r in calibrated if "speedup" in r]),
        "speedup_calibration_cases": sum("speedup" in r for r in calibrated),
        "speedup_calibration_capped_cases": sum("capped" in r["dp_accounting"] for r in calibrated),
        "dp_accounting_failures": sum("error" in r["dp_accounting"] for r in compared),
        "agreement_cases": sum("consistent" in r for r in compared),
        "dp_accounting_unsafe": [
            {key: r[key] for key in ("setting", "excess_delta", "proven")}
            for r in compared
            if "proven" in r and r["consistent"]
        ],
        "agreement_failures": [r["setting"] for r in compared if r.get("consistent") is False],
        "own_settings": len(done),
        "own_median_ms": median(times),
        "own_p95_ms": float(np.percentile(times, 95)) if times else None,
        "own_max_ms": times[-1] if times else None,
        "own_peak_memory_mb_over_import": max(
            (r["peak_mb_over_import"] for _, r in done), default=None
        ),
        "own_zero_epsilon": sum(r["upper"] == 0 for _, r in done),
        "own_wide_brackets": len(wide),
        "own_wide_settings": wide[:20],
        "own_failures": [
            {"setting": s.key, "why": r.get("error", "capped")}
            for s, r in own
            if "upper" not in r and "skipped" not in r
        ],
        "own_accountants": dict(Counter(r["accountant"] for _, r in done)),
        "own_slowest": [{"setting": s.key, "ms": 1e3 * r["cpu_seconds"]} for s, r in slowest],
        "skipped_for_lack_of_time": skipped,
        "comparison": compared,
        "calibration": calibrated,
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("numpy", "scipy", "dp-accounting")},
        },
    }
