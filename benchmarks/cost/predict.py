"""Predictions of the settings in `HELD`, on this CPU."""

from __future__ import annotations

from typing import Any

from benchmarks.cost.settings import Setting
from userdp.gradients.cost import CPU, PLAIN, count_step, seconds_of


def predicted(setting: Setting) -> dict[str, Any]:
    """Seconds and bytes of a step's gradients, plain and private, and their ratios."""
    units, passes = setting.units_in_pass, setting.passes
    row: dict[str, Any] = {"setting": setting.key, "units_in_pass": units, "passes": passes}
    for name, method in (("plain", PLAIN), ("private", setting.engine)):
        count = count_step(setting.work, method, units=units)
        row[f"seconds_{name}"] = seconds_of(count.of(passes), CPU)
        row[f"bytes_{name}"] = count.peak(passes)
    row["ratio"] = row["seconds_private"] / row["seconds_plain"]
    row["memory_ratio"] = row["bytes_private"] / row["bytes_plain"]
    return row
