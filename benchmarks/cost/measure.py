"""The settings in `HELD`, measured: interleaved rounds; peaks of memory in fresh processes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.cost.settings import HELD, Setting
from benchmarks.decoders import cohort
from benchmarks.step.memory import memory
from userdp.gradients import causal_lm_loss
from userdp.gradients.cost import PLAIN, step_of
from userdp.gradients.cost.counting import Step


def _step(setting: Setting, method: str) -> Step:
    return _steps(setting, [method])[method]


def _steps(setting: Setting, methods: list[str]) -> dict[str, Step]:
    rows = setting.units_in_pass * setting.group  # plain training in passes as large
    model = setting.build()
    units = cohort(setting.sequences, setting.group, setting.shape(setting.layers), device="cpu")
    return {m: step_of(m, model, causal_lm_loss, units, rows=rows) for m in methods}


def rounds(setting: Setting, count: int) -> dict[str, Any]:
    """Processor seconds of plain and private steps, one after the other, after one of each."""
    steps = _steps(setting, [PLAIN, setting.engine])
    taken: dict[str, list[float]] = {method: [] for method in steps}
    for round_ in range(count + 1):
        # Which of the two goes first alternates: neither always follows what the other left.
        for method in sorted(steps, reverse=bool(round_ % 2)):
            begin = time.process_time()
            steps[method]()
            if round_:
                taken[method].append(time.process_time() - begin)
    plain, private = taken[PLAIN], taken[setting.engine]
    return {
        "setting": setting.key,
        "seconds_plain": statistics.median(plain),
        "seconds_private": statistics.median(private),
        "ratio": statistics.median(b / a for a, b in zip(plain, private, strict=True)),
        "rounds_plain": plain,
        "rounds_private": private,
    }


def peak(key: str, method: str) -> int:
    """Bytes at the peak of one step in a fresh process, above its imports."""
    command = [sys.executable, "-m", "benchmarks.cost", "peak", key, method]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return int(out.strip().splitlines()[-1])


def peak_here(key: str, method: str) -> int:
    """The same of this process."""
    setting = next(one for one in HELD if one.key == key)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
    _step(setting, method)()
    return memory("VmHWM") - before


def measured(setting: Setting, count: int) -> dict[str, Any]:
    """The row of a setting."""
    row = rounds(setting, count)
    for name, method in (("plain", PLAIN), ("private", setting.engine)):
        row[f"bytes_{name}"] = peak(setting.key, method)
    row["memory_ratio"] = row["bytes_private"] / row["bytes_plain"]
    return row
