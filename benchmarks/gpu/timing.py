"""Methods timed side by side: interleaved rounds, ratios to the ordinary pass, peak memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from functools import partial

import torch
from torch import nn

from benchmarks.gpu.setting import Result, Setting, loss_of
from benchmarks.passes import Step, engine_step, plain
from userdp.gradients import Units
from userdp.training.config import Precision


def seconds(step: Step, setting: Setting) -> float:
    begin = now(setting)
    step()
    return now(setting) - begin


def now(setting: Setting) -> float:
    if setting.on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter()


def interleaved(
    steps: Mapping[str, Step],
    setting: Setting,
    deadline: float,
    *,
    base: str = "plain",
    before: Step = lambda: None,
    rounds: int = 7,
    together: int = 1,
) -> Result:
    """Median seconds, ratios to ``base`` and peak memory of each step.

    Args:
        steps: what to time, by name.
        setting: where.
        deadline: on `time.monotonic`; no round begins after it, but for the first.
        base: the name whose time is 1.
        before: done before each step.
        rounds: at most, after one that warms up and checks the engines.
        together: steps that are timed as one, in the rounds that count. As in training, the host
            prepares a step while the device computes the one before it.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    memory: dict[str, int] = {}
    for round_ in range((1 if setting.tiny else rounds) + 1):
        for name, step in steps.items():
            before()
            if setting.on_gpu:
                torch.cuda.reset_peak_memory_stats()
                held = torch.cuda.memory_allocated()
            count = together if round_ and setting.on_gpu else 1
            took = seconds(partial(_several, step, before, count), setting) / count
            if setting.on_gpu:
                memory[name] = torch.cuda.max_memory_allocated() - held
            if round_:
                times[name].append(took)
        if round_ and time.monotonic() > deadline:
            break
    ratios = {
        name: [t / b for t, b in zip(found, times[base], strict=True)]
        for name, found in times.items()
    }
    return {
        "rounds": len(times[base]),
        "seconds": {name: statistics.median(found) for name, found in times.items()},
        "ratio": {name: statistics.median(found) for name, found in ratios.items()},
        "ratio_least": {name: min(found) for name, found in ratios.items()},
        "ratio_most": {name: max(found) for name, found in ratios.items()},
        "peak_memory_bytes": memory,
    }


def _several(step: Step, before: Step, count: int) -> None:
    for _ in range(count):
        before()
        step()


def cleared(model: nn.Module) -> Step:
    """Forgets the gradients of the ordinary pass."""

    def clear() -> None:
        for parameter in model.parameters():
            parameter.grad = None

    return clear


def compare(
    model: nn.Module,
    precision: Precision,
    units: Units,
    engines: list[str],
    setting: Setting,
    deadline: float,
    *,
    micro_batch: int,
    together: int = 1,
    more: Mapping[str, Step] | None = None,
) -> Result:
    """``engines`` beside the ordinary pass over the same units, and ``more`` beside them."""
    loss = loss_of(precision, model)
    steps: dict[str, Step] = {"plain": lambda: plain(model, loss, units, micro_batch)}
    for name in engines:
        # One sum, as a training step of one micro-batch has it.
        steps[name] = engine_step(name, model, loss, units, micro_batch=micro_batch, parts=1)
    every = steps | dict(more or {})
    found = interleaved(every, setting, deadline, before=cleared(model), together=together)
    return {
        "precision": str(precision),
        "group_size": int(units.offsets[1]),
        "sequences": len(units.lengths),
        "micro_batch": micro_batch,
        "together": together,
        **found,
    }
