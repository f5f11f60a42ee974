"""Predictions of the settings in `HELD`, on this CPU."""

from __future__ import annotations

from typing import Any

from benchmarks.cost.settings import MICRO_BATCH, Setting, task_of
from benchmarks.cost.standing import origins
from benchmarks.paper_size.measure import cuts_of
from benchmarks.paper_size.settings import build, units_of
from benchmarks.rows import now
from userdp.gradients.cost import CPU, PLAIN, count_step, seconds_of


def predicted(setting: Setting, *, source: str) -> dict[str, Any]:
    """Seconds and bytes of a gradient, plain and private in equal passes, and their ratios.

    With them stand the date, and the digests of what they were predicted from (see `origins`).
    """
    task, (begin, end) = task_of(setting), cuts_of(build(setting), units_of(setting))[0]
    units = (end - begin) // setting.group
    passes = setting.sequences / (end - begin)
    row: dict[str, Any] = {"setting": setting.key, "rows": end - begin, "micro_batch": MICRO_BATCH}
    for name, method in (("plain", PLAIN), ("private", task.engine)):
        parts = None if method == PLAIN else 1  # as `benchmarks.paper_size` measures
        count = count_step(task.work, method, units=units, parts=parts)
        row[f"seconds_{name}"] = seconds_of(count.of(passes), CPU)
        row[f"bytes_{name}"] = count.peak(passes)
    row["ratio"] = row["seconds_private"] / row["seconds_plain"]
    row["memory_ratio"] = row["bytes_private"] / row["bytes_plain"]
    return {**row, "from": origins(setting, source=source), "date": now()}
