"""What is timed: the ordinary pass, our engines, and Opacus."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import nn
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from benchmarks import opacus_steps
from benchmarks.passes import CLIP, Step, engine_step, plain
from benchmarks.step.models import Setting, loss_of
from userdp.gradients import Units, causal_lm_loss

PART = 8
"""Sequences of a pass where plain training works in parts."""

OURS = ["auto", "reference"]
COMPILED = ["plain compiled", "plain compiled blocks", "plain compiled loss"]
OTHERS = ["opacus per-sample", "opacus ghost"]
MISSING = {
    "fastDP": "needs a checkout and an untied model",
    "jax_privacy": "is for JAX models",
}


def methods_of(setting: Setting, *, quick: bool) -> list[str]:
    if quick:
        return ["plain", "auto"] if setting.rank else ["plain", "auto", "opacus per-sample"]
    found = ["plain", "plain in parts", *OURS]
    if setting.precision == "float32" and setting.rank is None and setting.width == 256:
        found += OTHERS[: 1 if setting.group > 1 else 2]
    return found


def make(method: str, setting: Setting, model: nn.Module, units: Units) -> Step:
    loss = loss_of(setting, device=units.lengths.device.type)
    if method == "plain":
        return partial(plain, model, loss, units, len(units.lengths))
    if method == "plain in parts":
        return partial(plain, model, loss, units, PART)
    if method in COMPILED:
        return compiled(method, model, units)
    if method == "opacus per-sample":
        clipping = opacus_steps.per_sample(
            opacus_steps.supported(model), group=setting.group, l2_clip_norm=CLIP
        )
        return partial(clipping, units)
    if method == "opacus ghost":
        ghost = opacus_steps.ghost(opacus_steps.supported(model), l2_clip_norm=CLIP)
        return partial(ghost, units)
    rows = len(units.lengths)  # in one sum, as `PrivateRun` calls the engine
    return engine_step(method, model, loss, units, micro_batch=rows, parts=1)


def compiled(method: str, model: nn.Module, units: Units, *, backend: str = "inductor") -> Step:
    """``plain in parts``, compiled: the model, each of its blocks, or the model with its loss.

    Of a copy, so that no other method meets compiled code. The warm-up round compiles it.
    """
    own, loss = copy.deepcopy(model), causal_lm_loss
    if method == "plain compiled":
        own.compile(backend=backend)
    elif method == "plain compiled blocks":
        for block in own.modules():
            if isinstance(block, GPT2Block):
                block.compile(backend=backend)
    else:
        loss = torch.compile(loss, backend=backend)
    return partial(plain, own, loss, units, PART)
