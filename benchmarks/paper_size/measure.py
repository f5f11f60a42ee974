"""One setting in this process: rounds of both gradients, or the peak of one."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import util
from pathlib import Path

import torch
from torch import nn

from benchmarks import opacus_steps
from benchmarks.paper_size.settings import Setting, build, setting_of, units_of
from benchmarks.passes import CLIP, Step, engine_step, passes_of
from benchmarks.rows import add_row, now
from userdp.gradients import Units, causal_lm_loss, trainable_parameters
from userdp.gradients.engines.engine import Task

MICRO_BATCH = 64


def plain_in_passes(model: nn.Module, units: Units, cuts: list[tuple[int, int]]) -> None:
    """The ordinary gradient, in these ranges of rows."""
    for parameter in trainable_parameters(model).values():
        parameter.grad = None
    count = len(units.lengths)
    for begin, end in cuts:
        here = slice(begin, end)
        losses = causal_lm_loss(model, units.input_ids[here], units.lengths[here])
        torch.autograd.backward(losses.sum() / count)


def cuts_of(model: nn.Module, units: Units) -> list[tuple[int, int]]:
    """As many rows in each pass of the plain step as in the private step's."""
    task = Task(
        model=model,
        loss=causal_lm_loss,
        units=units,
        l2_clip_norm=CLIP,
        micro_batch=MICRO_BATCH,
    )
    sizes = [len(one.numbers) * one.shape.rows for one in passes_of(task)]
    ends = list(itertools.accumulate(sizes))
    return list(zip([0, *ends], ends, strict=False))


def steps_of(model: nn.Module, units: Units, methods: list[str]) -> dict[str, Step]:
    """Each method's step; passes are added up as in `PrivateRun`, in float32 where that is safe."""
    cuts = cuts_of(model, units)
    makers: dict[str, Callable[[], Step]] = {
        "plain": lambda: lambda: plain_in_passes(model, units, cuts),
        "private": lambda: engine_step(
            "auto", model, causal_lm_loss, units, micro_batch=MICRO_BATCH, parts=1
        ),
        "opacus": lambda: _opacus(model, units, cuts[0][1] - cuts[0][0]),
    }
    return {method: makers[method]() for method in methods}


def _opacus(model: nn.Module, units: Units, rows: int) -> Step:
    step = opacus_steps.ghost(opacus_steps.supported(model), l2_clip_norm=CLIP)
    return lambda: [step(units.select(at, at + rows)) for at in range(0, len(units), rows)]


def two_passes(setting: Setting) -> Units:
    """Units for two passes: the second has all that the first one leaves."""
    return units_of(replace(setting, sequences=min(setting.sequences, 2 * max(8, setting.group))))


def rounds(
    setting: Setting,
    *,
    done: int,
    wanted: int,
    results: Path,
    notes: Mapping[str, str | None],
) -> None:
    """Take what is missing of the rounds; each is a row of the results.

    Args:
        setting: which is measured.
        done: rounds that the results have.
        wanted: rounds that they are to have.
        results: where the rows go.
        notes: what every row says beside its figures and its date.
    """
    torch.set_num_threads(1)
    methods = ["plain", "private"]
    if setting.key == "decoder_g1" and util.find_spec("opacus") is not None:
        methods.append("opacus")
    model, units = build(setting), units_of(setting)
    for step in steps_of(model, two_passes(setting), methods).values():
        step()  # warms up, and checks the engine
    steps = steps_of(model, units, methods)
    rows = max(e - b for b, e in cuts_of(model, units))
    for number in range(done, wanted):
        seconds = {}
        for method in methods if number % 2 else methods[::-1]:
            begin = time.process_time()
            steps[method]()
            seconds[method] = time.process_time() - begin
        found = {"setting": setting.key, "rows": rows, "seconds": seconds}
        add_row(results, {**found, "load": os.getloadavg()[1], **notes, "date": now()})
        print(setting.key, number + 1, seconds, flush=True)


def peak(setting: Setting, method: str) -> int:
    """Bytes at the peak of one gradient, above what the process holds after its imports."""
    torch.set_num_threads(1)
    build(setting_of("trial_lora"))  # imports what a model with adapters does
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
    steps_of(build(setting), two_passes(setting), [method])[method]()
    return memory("VmHWM") - before


def memory(name: str) -> int:
    """Bytes of this process; `getrusage` would begin with the parent's peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
