"""The largest batch and the largest model that fit a budget of memory, ours beside Opacus's.

All methods get the same model in float32: GPT-2 style, with Linear in place of Conv1D and an output
layer of its own, since Opacus knows neither Conv1D nor tied tensors; every sequence is a unit
(Opacus clips examples). Opacus's ghost clipping takes its batch in one pass; cutting a batch into
physical ones is then the caller's (its BatchMemoryManager). Our engine cuts the batch itself into
passes of ``rows_per_pass``, so that its batch hardly costs memory; it is searched up to a cap.
``plain`` is one ordinary pass over the whole batch. ``seconds_per_sequence`` stands beside what is
found: a larger batch is worth little if it is slower.

``memory_batch`` searches the number of sequences for the 350 M decoder, ``memory_model`` the number
of layers at d = 1600 for 8 sequences: double until memory runs out, then bisect. The budget is
`torch.cuda.set_per_process_memory_fraction`. On a CPU a cap on the size stands for it, which shows
that the search runs and says nothing about memory.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import util

import torch
from torch import nn

from benchmarks.decoders import Shape, cohort, gpt2
from benchmarks.gpu.setting import DECODER, TINY, Result, Setting
from benchmarks.gpu.timing import seconds
from benchmarks.opacus_steps import ghost, replace_conv1d
from benchmarks.passes import CLIP, engine_step, passes_of, plain
from userdp.gradients import Units, causal_lm_loss, trainable_parameters
from userdp.gradients.engines.engine import Task

METHODS = ("plain", "auto", "opacus ghost")
WIDE = Shape(layers=1, width=1600, heads=25, vocabulary=50257, length=128)
_CPU_CAP = 3


def largest(
    fits: Callable[[int], bool], *, most: int, deadline: float = math.inf
) -> tuple[int, int | None]:
    """The largest size that is known to fit, and the smallest known not to (None: none was met).

    Args:
        fits: whether a size fits; where one does not, no larger one does.
        most: the search ends there.
        deadline: on `time.monotonic`; the search ends after it with what is known.

    >>> largest(lambda size: size <= 11, most=100)
    (11, 12)
    >>> largest(lambda size: True, most=100)
    (100, None)
    """
    good, bad = 0, None
    while good < most and (bad is None or bad - good > 1):
        if good and time.monotonic() > deadline:
            break
        at = min(max(1, 2 * good), most) if bad is None else (good + bad) // 2
        if fits(at):
            good = at
        else:
            bad = at
    return good, bad


def memory(what: str, setting: Setting, deadline: float) -> Result:
    """A row for each method: ``what`` is batch or model."""
    here = TINY if setting.tiny else (DECODER if what == "batch" else WIDE)
    most = (8 if what == "batch" else 4) if setting.tiny else (1024 if what == "batch" else 256)
    rows, skipped = [], []
    with Budget(setting):
        for place, method in enumerate(METHODS):
            missing = absent(method)
            if missing:
                skipped.append(f"{method}: {missing}")
                continue
            left = max(0.0, deadline - time.monotonic())
            until = time.monotonic() + left / (len(METHODS) - place)

            def size(number: int) -> tuple[Shape, int]:
                return (here, number) if what == "batch" else (replace(here, layers=number), 8)

            def fits(number: int, method: str = method) -> bool:
                return attempt(method, *size(number), setting, number) is not None

            good, bad = largest(fits, most=most, deadline=until)
            row = {"method": method, "searched": what, "largest": good, "fails_at": bad}
            row["capped"] = good == most
            row["settled"] = good == most or (bad is not None and bad - good == 1)
            if good:
                row |= facts(method, *size(good), setting, good)
            rows.append(row)
    # What is not installed here is no reason to search again.
    return {"budget_gib": setting.memory_gib, "rows": rows, "absent": skipped}


def absent(method: str) -> str | None:
    """Why ``method`` cannot be run here."""
    if method.startswith("opacus") and util.find_spec("opacus") is None:
        return "opacus not installed"
    return None


class Budget:
    """Within, the allocator hands out ``memory_gib`` at most."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def __enter__(self) -> None:
        if self._setting.on_gpu:
            total = torch.cuda.get_device_properties(0).total_memory
            fraction = min(1.0, self._setting.memory_gib * 2**30 / total)
            torch.cuda.set_per_process_memory_fraction(fraction)

    def __exit__(self, *error: object) -> None:
        if self._setting.on_gpu:
            torch.cuda.set_per_process_memory_fraction(1.0)


def attempt(
    method: str, shape: Shape, sequences: int, setting: Setting, number: int, steps: int = 1
) -> float | None:
    """Seconds of the last of ``steps`` steps; None if memory runs out."""
    if not setting.on_gpu and number > _CPU_CAP:  # which stands for memory on a CPU
        return None

    def last_of_steps() -> float:
        step = stepper(method, linear_gpt2(shape, setting.device))
        units = cohort(sequences, 1, shape, device=setting.device)
        return [seconds(lambda: step(units), setting) for _ in range(steps)][-1]

    found: float | None = None
    with suppress(torch.OutOfMemoryError):
        found = last_of_steps()
    if setting.on_gpu:  # a failed step leaves its activations in cycles of hooks and graphs
        gc.collect()
        torch.cuda.empty_cache()
    return found


def facts(method: str, shape: Shape, sequences: int, setting: Setting, number: int) -> Result:
    """Of the size found: parameters, rows of a pass, time (None if a second step fails)."""
    took = attempt(method, shape, sequences, setting, number, steps=2)
    with torch.device("meta"):
        model = linear_gpt2(shape, "meta")
    parameters = trainable_parameters(model)
    rows = sequences
    if method == "auto":
        units = cohort(sequences, 1, shape, device="cpu")
        task = Task(
            model=model,
            loss=causal_lm_loss,
            units=units.to(setting.device),
            l2_clip_norm=1.0,
            micro_batch=sequences,
        )
        rows = passes_of(task)[0].shape.units
    return {
        "sequences": sequences,
        "layers": shape.layers,
        "parameters": sum(p.numel() for p in parameters.values()),
        "rows_per_pass": rows,
        "seconds_per_sequence": None if took is None else took / sequences,
    }


def linear_gpt2(shape: Shape, device: str) -> nn.Module:
    """GPT-2 with Linear in place of Conv1D and an output layer of its own."""
    model = gpt2(shape, tied=False, device=device)
    replace_conv1d(model)
    return model


def stepper(method: str, model: nn.Module) -> Callable[[Units], object]:
    """One step of ``method`` over the units it is given, in one call."""
    if method == "plain":
        return lambda units: plain(model, causal_lm_loss, units, len(units.lengths))
    if method == "auto":
        return lambda units: engine_step(
            "auto", model, causal_lm_loss, units, micro_batch=len(units.lengths)
        )()
    return ghost(model, l2_clip_norm=CLIP)
