"""A setting's methods side by side, in interleaved rounds."""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from importlib import util
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.decoders import cohort
from benchmarks.passes import CLIP, Step
from benchmarks.step.methods import MISSING, make
from benchmarks.step.models import Setting, build
from userdp.gradients import Units, causal_lm_loss, clipped_sum
from userdp.gradients.engines import get_engine


def measure(
    setting: Setting, methods: list[str], args: argparse.Namespace, deadline: float
) -> dict[str, Any]:
    model = build(setting, device=args.device)
    units = cohort(args.sequences, setting.group, setting.shape, device=args.device)
    skipped: dict[str, str] = {}
    steps: dict[str, Step] = {}
    for method in methods:
        if method.startswith("opacus") and util.find_spec("opacus") is None:
            skipped[method] = "opacus is not installed"
            continue
        steps[method] = make(method, setting, model, units)
    times: dict[str, list[float]] = {method: [] for method in steps}
    for round_ in range(args.runs + 1):
        for method, step in steps.items():
            begin = clock(args.clock, args.device)
            step()
            if round_:  # without the first, which warms up and checks the engine
                times[method].append(clock(args.clock, args.device) - begin)
        if args.verbose:
            line = {m: round(statistics.median(t), 3) for m, t in times.items() if t}
            print(setting.key, round_, line, file=sys.stderr, flush=True)
        if time.monotonic() > deadline and times["plain"]:
            break
    base = times["plain"]
    ratios = {
        method: interval([t / b for t, b in zip(found, base, strict=True)])
        for method, found in times.items()
    }
    return {
        "setting": setting.key,
        "rounds": len(base),
        "base_seconds": statistics.median(base),
        "ratios": ratios,
        "times": times,
        "exactness": None
        if args.quick or setting.precision != "float32"
        else exactness(model, units),
        "skipped": skipped | MISSING,
    }


def clock(kind: str, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.process_time() if kind == "cpu" else time.perf_counter()


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Median and its bootstrap 90% interval."""
    draws = np.random.default_rng(0).choice(ratios, size=(2000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.05, 0.95])
    return float(np.median(ratios)), float(low), float(high)


def exactness(model: nn.Module, units: Units) -> float:
    """Largest relative difference of a norm from the reference's in float64, over two units."""
    few = units.select(0, 2)
    wide = copy.deepcopy(model).double()
    exact = clipped_sum(wide, causal_lm_loss, few, l2_clip_norm=CLIP).norms
    found = get_engine("auto")(model, causal_lm_loss, few, l2_clip_norm=CLIP).norms
    return float(((found - exact) / exact).abs().max())
