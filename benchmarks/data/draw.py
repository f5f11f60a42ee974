"""The part ``draw``: a Poisson cohort from ever more examples."""

from __future__ import annotations

import functools
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data.running import least, say
from benchmarks.data.stores import index_of, sampler_of, write_store


def draw(folder: Path, sizes: list[int], index_alone: int, times: int) -> dict[str, Any]:
    rows = []
    for examples in [*sizes, index_alone]:
        counts = np.full(examples // 10, 10, dtype=np.int64)
        if examples == index_alone:
            split = index_of(counts)
        else:
            split = write_store(folder / f"draw-{examples}", counts, 8).split("train")
        sampler = sampler_of(split.counts, 256)
        draws, reads, again, faults = [], [], [], []
        for _ in range(times):
            began = time.perf_counter()
            cohort = sampler.draw()
            drawn = time.perf_counter()
            read = split._places if examples == index_alone else split.gather
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            read(cohort.users, cohort.examples)
            draws.append(drawn - began)
            reads.append(time.perf_counter() - drawn)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
            again.append(least(functools.partial(read, cohort.users, cohort.examples), 1))
        row = {"examples": examples, "draw_seconds": float(np.median(draws)),
               "gather_seconds": float(np.median(reads)),
               "gather_again_seconds": float(np.median(again)),
               "page_faults": float(np.median(faults)), "rows": len(cohort.users),
               "index_alone": examples == index_alone}  # fmt: skip
        rows.append(row)
        say(f"{examples:>12,} examples: draw {1e3 * row['draw_seconds']:.2f} ms, "
            f"gather {1e3 * row['gather_seconds']:.2f} ms ({row['page_faults']:.0f} page faults), "
            f"again {1e3 * row['gather_again_seconds']:.2f} ms")  # fmt: skip
    return {
        "rows": rows,
        "ratio_draw_largest_over_smallest": rows[-1]["draw_seconds"] / rows[0]["draw_seconds"],
        "ratio_gather_largest_over_smallest": rows[-2]["gather_seconds"]
        / rows[0]["gather_seconds"],
        "ratio_gather_again_largest_over_smallest": rows[-2]["gather_again_seconds"]
        / rows[0]["gather_again_seconds"],
    }
