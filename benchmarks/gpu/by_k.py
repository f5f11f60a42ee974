"""Cost against k, the examples of a user in a step: Chua et al. 2024, Section C.5 and Figure 6.

Their figure is the time of an epoch of User-wise DP-SGD on BookSum against k, with the users of a
step held fixed; their k are 2, 5, 10, 20, 50 (Table 11). An epoch is then a fixed number of steps,
so that the time of a step has the same shape. ``k_users`` is that: 20 users of k sequences of 128
tokens. ``k_gradients`` holds the gradients of a step fixed at 1,000 instead, in 1,000 / k users,
and so tells what grouping itself costs. Both: GPT-2 small, LoRA of rank 32, passes of 100 rows.
"""

from __future__ import annotations

import time

from benchmarks.decoders import cohort
from benchmarks.gpu.ratios import with_adapters
from benchmarks.gpu.setting import GPT2_SIZES, TINY, Result, Setting
from benchmarks.gpu.timing import compare
from userdp.training.config import Precision

KS = (2, 5, 10, 20, 50)
USERS, GRADIENTS, PASS = 20, 1000, 100


def by_k(fixed: str, setting: Setting, deadline: float) -> Result:
    """A row for each k, with ``users`` or ``gradients`` of a step held ``fixed``."""
    shape = TINY if setting.tiny else GPT2_SIZES["gpt2"]
    ks = (2, 5) if setting.tiny else KS
    model = with_adapters(shape, setting)
    rows: list[Result] = []
    skipped = []
    for place, k in enumerate(ks):
        left = deadline - time.monotonic()
        if rows and left < 0:
            skipped.append(f"k = {k}")
            continue
        until = time.monotonic() + left / (len(ks) - place)
        if fixed == "users":
            sequences = (3 if setting.tiny else USERS) * k
        else:
            sequences = 20 if setting.tiny else GRADIENTS
        units = cohort(sequences, k, shape, device=setting.device)
        row = compare(model, Precision.FLOAT32, units, ["auto"], setting, until, micro_batch=PASS)
        per_gradient = {name: took / sequences for name, took in row["seconds"].items()}
        rows.append({**row, "users": sequences // k, "seconds_per_gradient": per_gradient})
    return {"fixed": fixed, "rows": rows, "skipped": skipped}
