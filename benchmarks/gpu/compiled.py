"""What `torch.compile` is worth to either side.

The engines watch torch's functions as they are called, so a compiled model runs under them as it is
written (`userdp.gradients.modes.eagerly`): right, and no faster. The ordinary pass can be
compiled, its model alone or with its loss, and the faster of the two is then what privacy is to be
paid for against: ``ratio_to_compiled``.
"""

from __future__ import annotations

import time

import torch

from benchmarks.decoders import cohort, gpt2
from benchmarks.gpu.exactness import compiled
from benchmarks.gpu.setting import DECODER, TINY, Result, Setting, loss_of
from benchmarks.gpu.timing import compare
from benchmarks.passes import engine_step, plain
from userdp.training.config import Precision


def beside_compiled(setting: Setting, deadline: float) -> Result:
    """Both sides, plain and compiled, on the decoder in float32; units of 1 and 4."""
    shape = TINY if setting.tiny else DECODER
    precision, micro_batch = Precision.FLOAT32, 64  # fewer bits are not batched
    model = gpt2(shape, device=setting.device)
    wrapped = compiled(model, setting)
    loss = loss_of(precision, model)
    together = torch.compile(loss, backend="inductor" if setting.on_gpu else "eager")
    rows: list[Result] = []
    skipped = []
    for group in (4,) if setting.tiny else (1, 4):
        if rows and time.monotonic() > deadline:
            skipped.append(f"G = {group}")
            continue
        units = cohort(16 if setting.tiny else 128, group, shape, device=setting.device)
        more = {
            "plain, model compiled": lambda u=units: plain(model, loss, u, micro_batch, wrapped),
            "plain, loss compiled": lambda u=units: plain(model, together, u, micro_batch),
            "auto, model compiled": engine_step(
                "auto", wrapped, loss, units, micro_batch=micro_batch
            ),
        }
        row = compare(
            model, precision, units, ["auto"], setting, deadline, micro_batch=micro_batch, more=more
        )
        fastest = min(took for name, took in row["seconds"].items() if name.startswith("plain"))
        to_compiled = {name: took / fastest for name, took in row["seconds"].items()}
        rows.append({**row, "ratio_to_compiled": to_compiled})
    return {"rows": rows, "skipped": skipped}
