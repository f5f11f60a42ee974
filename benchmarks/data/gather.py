"""The part ``gather``: a cohort's tokens, beside ``numpy.take`` of the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data.running import least, say
from benchmarks.data.stores import SEQ_LEN, write_store

COHORT, GROUP = 4096, 64


def gather(folder: Path, users: int, times: int) -> dict[str, Any]:
    store = write_store(folder / "gather", np.full(users, GROUP), SEQ_LEN)
    split = store.split("train")
    draw = np.random.default_rng(1)
    cohort = min(COHORT, users)
    chosen = np.repeat(draw.choice(users, cohort, replace=False), GROUP)
    examples = np.tile(np.arange(GROUP), cohort)
    rows = split.gather(chosen, examples)
    tokens = store.examples[split.name].tokens
    index = ((chosen * GROUP + examples)[:, None] * SEQ_LEN + np.arange(SEQ_LEN)).ravel()
    assert np.array_equal(np.take(tokens, index), rows.tokens)
    ratios = []
    for _ in range(times):
        bare = least(lambda: np.take(tokens, index), 2)
        ours = least(lambda: split.gather(chosen, examples), 2)
        ratios.append(ours / bare)
    files = list((folder / "gather").rglob("*.tokens"))
    for file in files:
        with file.open("rb") as held:
            os.fsync(held.fileno())
            os.posix_fadvise(held.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    cold = least(lambda: split.gather(chosen, examples), 1)
    result = {
        "rows": len(chosen), "tokens": int(rows.offsets[-1]), "numpy_seconds": bare,
        "ours_seconds": ours, "ratio_ours_over_numpy": float(np.median(ratios)),
        "cold_seconds": cold,
    }  # fmt: skip
    say(f"gather of {len(chosen):,} rows: NumPy {bare:.3f} s, ours {ours:.3f} s, ratio "
        f"{result['ratio_ours_over_numpy']:.2f}; cold {cold:.3f} s")  # fmt: skip
    return result
