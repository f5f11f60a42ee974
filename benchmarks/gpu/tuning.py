"""What the engines' constants should be on this device; nothing here changes them.

``products``: engines widen bfloat16 activations to float32 before they form gradients or Gram
matrices. Tensor cores can take the bfloat16 numbers as they are and add up in float32: the same
products, exact in both. Time and error (relative, against float64) of one layer's per-unit
gradients each way.

``forms``: when a layer's gradients should be formed and when its Gram matrices taken. Time of norms
and weighted sum each way, beside the quantity that `engines.uses` compares with its constant for
this kind of device: the constant should lie where the ratio passes 1.

``passes``: how many units a pass may hold. The engines allow `passes.FORMED_BYTES`, a quarter of
the device's memory, the model's own or four times the trained parameters, whichever is most. The
decoder in float32 under a smaller limit, a larger one and none, beside the ordinary pass; in passes
of 64 rows at most.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from unittest import mock

import torch
from torch import Tensor

from benchmarks.decoders import cohort, gpt2
from benchmarks.gpu.setting import DECODER, TINY, Result, Setting, loss_of
from benchmarks.gpu.timing import cleared, interleaved, seconds
from benchmarks.passes import engine_step, plain
from userdp.gradients.engines import batched, passes
from userdp.gradients.engines.rules.linear import Ghost, form_gradients
from userdp.gradients.engines.uses import Dense
from userdp.training.config import Precision

UNITS = 16
SIDES = ((1024, 1024), (4096, 1024))
POSITIONS = (32, 127, 254, 508, 2032)
LIMITS_GIB = (0.25, 8, 32, None)


def median(step: Callable[[], object], setting: Setting) -> float:
    """Seconds, the median of some after one that warms up."""
    step()
    return statistics.median(seconds(step, setting) for _ in range(1 if setting.tiny else 15))


def products(setting: Setting, deadline: float) -> Result:
    rows = []
    for p, q in ((32, 16),) if setting.tiny else SIDES:
        s = 24 if setting.tiny else 508
        generator = torch.Generator(device=setting.device).manual_seed(0)
        left, right = (
            torch.randn(UNITS, s, side, generator=generator, device=setting.device).bfloat16()
            for side in (p, q)
        )
        turned = left.transpose(1, 2)
        exact = turned.double() @ right.double()
        ways: dict[str, Callable[[], Tensor]] = {
            "widened": lambda a=turned, b=right: torch.bmm(a.float(), b.float()),
            "bfloat16, float32 out": lambda a=turned, b=right: torch.bmm(
                a, b, out_dtype=torch.float32
            ),
            "bfloat16": lambda a=turned, b=right: torch.bmm(a, b),
        }
        for name, way in ways.items():
            row: Result = {"way": name, "units": UNITS, "positions": s, "p": p, "q": q}
            try:
                row["error"] = float((way().double() - exact).norm() / exact.norm())
                row["seconds"] = median(way, setting)
            except (RuntimeError, TypeError) as error:  # not on every device and version
                row["absent"] = str(error).splitlines()[0][:120]
            rows.append(row)
    return {"rows": rows}


def forms(setting: Setting, deadline: float) -> Result:
    rows = []
    for p, q in ((32, 16),) if setting.tiny else SIDES:
        for s in (8,) if setting.tiny else POSITIONS:
            layer = Layer(s, p, q, setting)
            formed, ghost = median(layer.formed, setting), median(layer.ghost, setting)
            rows.append(
                {
                    "p": p,
                    "q": q,
                    "positions": s,
                    "compared": s**2 * (1 / p + 1 / q),
                    "seconds_formed": formed,
                    "seconds_ghost": ghost,
                    "ghost_to_formed": ghost / formed,
                }
            )
    return {"rows": rows}


class Layer:
    """What one layer leaves behind for `UNITS` units of ``positions`` each."""

    def __init__(self, positions: int, p: int, q: int, setting: Setting) -> None:
        device = setting.device
        self.left = torch.randn(UNITS, positions, p, device=device)
        self.right = torch.randn(UNITS, positions, q, device=device)
        self.total = torch.zeros(p, q, dtype=torch.float64, device=device)
        self.factors = torch.full((UNITS,), 0.5, dtype=torch.float64, device=device)

    def formed(self) -> None:
        self._finish(Dense(form_gradients(self.left, self.right)))

    def ghost(self) -> None:
        self._finish(Ghost(self.left, self.right))

    def _finish(self, use: Dense | Ghost) -> None:
        use.squared_norms()
        use.add_to(self.total, self.factors)


def limits(setting: Setting, deadline: float) -> Result:
    """Rows as `timing.compare` makes them; an engine's name ends with its limit."""
    shape = TINY if setting.tiny else DECODER
    model = gpt2(shape, device=setting.device)
    precision, micro_batch = Precision.FLOAT32, 64  # fewer bits are not batched
    loss = loss_of(precision, model)
    rows: list[Result] = []
    skipped, absent = [], []
    for group in (1, 4):
        if rows and time.monotonic() > deadline:
            skipped.append(f"G = {group}")
            continue
        units = cohort(16 if setting.tiny else 128, group, shape, device=setting.device)
        steps: dict[str, Callable[[], object]] = {
            "plain": lambda u=units: plain(model, loss, u, micro_batch)
        }
        for gib in LIMITS_GIB:
            name = "no limit" if gib is None else f"{gib:g} GiB"
            step = limited(engine_step("auto", model, loss, units, micro_batch=micro_batch), gib)
            try:
                cleared(model)()
                step()
                steps[f"auto, {name}"] = step
            except torch.OutOfMemoryError:
                absent.append(f"G = {group}, {name}: out of memory")
                torch.cuda.empty_cache()
        found = interleaved(steps, setting, deadline, before=cleared(model), rounds=3)
        about = {"precision": str(precision), "group_size": group, "micro_batch": micro_batch}
        rows.append({**about, "sequences": len(units.lengths), **found})
    return {"rows": rows, "skipped": skipped, "absent": absent}


def limited(step: Callable[[], object], gib: float | None) -> Callable[[], object]:
    """``step`` under another limit of a pass's per-unit gradients; None: under none."""
    if gib is None:
        change = mock.patch.object(batched, "most_units", return_value=sys.maxsize)
    else:  # the engines allow a quarter of what they think the device has
        change = mock.patch.object(passes, "bytes_of_device", return_value=int(4 * gib * 2**30))

    def call() -> object:
        with change:
            return step()

    return call
