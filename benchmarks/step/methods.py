"""What is timed: the ordinary pass, our engines, and Opacus."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from benchmarks import opacus_steps
from benchmarks.step.models import Setting
from userdp.gradients import Units, causal_lm_loss, trainable_parameters
from userdp.gradients.engines import get_engine

CLIP = 1.0
Step = Callable[[], object]
OURS = ["auto", "reference", "vmap"]
OTHERS = ["opacus per-sample", "opacus ghost"]
MISSING = {
    "fastDP": "needs a checkout and an untied model",
    "jax_privacy": "is for JAX models",
}


def methods_of(setting: Setting, *, quick: bool) -> list[str]:
    if quick:
        return ["plain", "auto"] if setting.rank else ["plain", "auto", "opacus per-sample"]
    found = ["plain", "plain in parts", *OURS]
    if setting.rank is None and setting.width == 256:
        found += OTHERS[: 1 if setting.group > 1 else 2]
    return found


def make(method: str, setting: Setting, model: nn.Module, units: Units) -> Step:
    if method == "plain":
        return plain(model, units, rows=len(units.lengths))
    if method == "plain in parts":
        return plain(model, units, rows=8)
    if method == "opacus per-sample":
        clipping = opacus_steps.per_sample(
            opacus_steps.supported(model), group=setting.group, l2_clip_norm=CLIP
        )
        return partial(clipping, units)
    if method == "opacus ghost":
        ghost = opacus_steps.ghost(opacus_steps.supported(model), l2_clip_norm=CLIP)
        return partial(ghost, units)
    return ours(model, units, method)


def plain(model: nn.Module, units: Units, *, rows: int) -> Step:
    parameters = list(trainable_parameters(model).values())
    count = len(units.lengths)

    def step() -> None:
        for p in parameters:
            p.grad = None
        for begin in range(0, count, rows):
            here = slice(begin, begin + rows)
            (
                causal_lm_loss(model, units.input_ids[here], units.lengths[here]).sum() / count
            ).backward()

    return step


def ours(model: nn.Module, units: Units, name: str) -> Step:
    engine = get_engine(name)
    micro_batch = len(units.lengths)
    return lambda: engine(model, causal_lm_loss, units, l2_clip_norm=CLIP, micro_batch=micro_batch)
