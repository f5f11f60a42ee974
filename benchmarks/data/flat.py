"""The part ``flat``: memory over many steps."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data.running import say
from benchmarks.data.stores import sampler_of, write_store


def flat(folder: Path, steps: int) -> dict[str, Any]:
    from userdp.data.examples import ahead

    split = write_store(folder / "flat", np.full(2000, 10), 32).split("train")
    sampler = sampler_of(split.counts, 64)

    def step(number: int) -> int:
        cohort = sampler.draw()
        split.gather(cohort.users, cohort.examples)
        return number

    seen = {}
    began = time.perf_counter()
    for number in ahead(step, range(1, steps + 1)):
        if number in (steps // 10, steps):
            seen[number] = rss_mb()
    first, last = seen.values()
    result = {"steps": steps, "rss_mb": seen, "growth_mb": last - first,
              "seconds_per_step": (time.perf_counter() - began) / steps}  # fmt: skip
    say(f"RSS over {steps:,} steps: {first:.1f} -> {last:.1f} MB")
    return result


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
