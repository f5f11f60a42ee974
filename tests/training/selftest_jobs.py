"""What makes a selftest's process wrong on purpose, and what it says then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.training.toy import tiny_gpt2
from userdp.gradients import ENGINES, NoiseSource
from userdp.gradients import clip_factors as clipping
from userdp.gradients import noise as drawing
from userdp.training.distributed import Dealing, SharedNoise, World
from userdp.training.selftest import Scene, gradients, machine


def tiny_model() -> nn.Module:
    torch.manual_seed(0)
    return tiny_gpt2(32, n_positions=8)


def failing(fault: str | None = None, *, put: Any = setattr) -> set[str]:
    """The checks that fail in this process, with a fault that is planted."""
    if fault is not None:
        _, _, place, wrong = FAULTS[fault]
        put(*place, wrong(getattr(*place)))
    scene = Scene(tiny_model(), units=3, group_size=2)
    every = [*machine(scene), *gradients(scene, ENGINES["reference"])]
    return {one.check for one in every if not one.passed}


def _rank_one() -> bool:
    return World().rank == 1


def _dropped(honest):
    def together(self, summed, rows, **options):
        summed.value["transformer.ln_f.weight"].zero_()
        return honest(self, summed, rows, **options)

    return together


def _scaled(scale: float, whom: Callable[[], bool] = lambda: True):
    return lambda honest: lambda self, value, std: honest(self, value, std * scale ** whom())


def _own_noise(honest):
    return lambda self, value, noise_std: NoiseSource().add_(value, noise_std)


def _nobodys(honest):
    """One process takes another for the owner of a tensor, and neither draws its noise."""
    return lambda self, value: dict(list(honest(self, value).items())[1:])


def _off_the_grid(honest):
    def add_(self, value, noise_std):
        honest(self, value, noise_std)
        for part in value.values():
            part.add_(noise_std * 1e-9)

    return add_


def _again(honest):
    kept: dict[str, torch.Tensor] = {}

    def add_(self, value, noise_std):
        honest(self, value, noise_std)
        for name, part in value.items():
            part.copy_(kept.setdefault(name, part.clone()))

    return add_


def _narrow(honest):
    def draw(generator, out):
        honest(generator, out)
        out[:] = out.astype(np.float32)

    return draw


def _wide(honest):
    def clip_factors(squares, *, l2_clip_norm, stability=None):
        return honest(squares, l2_clip_norm=1.002 * l2_clip_norm, stability=stability)

    return clip_factors


def _everybody(honest):
    def mine(self, cohort):
        honest(self, cohort)
        self._units = cohort.units * self._world.size  # and the check of each step is fooled
        return cohort

    return mine


def _other_weights(honest):
    def broadcast_model(self, model):
        with torch.no_grad():
            next(iter(model.parameters())).add_(1e-3 * _rank_one())

    return broadcast_model


_SUMS, _NOISE = (Dealing, "together"), (NoiseSource, "add_")
FAULTS: dict[str, tuple[str, str, tuple[object, str], Callable[[Any], Any]]] = {
    "a layer whose gradient is dropped from the sum": ("engine", "one", _SUMS, _dropped),
    "a margin of more than the clip norm": (
        "sensitivity", "one", (clipping, "clip_factors"), _wide
    ),
    "draws in float32": ("noise's tail", "one", (drawing, "draw_on_host"), _narrow),
    "noise off the grid": ("noise", "one", _NOISE, _off_the_grid),
    "noise that comes again in the next step": ("noise", "one", _NOISE, _again),
    "noise that is a tenth too small": ("noise", "one", _NOISE, _scaled(0.9)),
    "every process clips all units": ("engine", "two", (Dealing, "mine"), _everybody),
    "one process has other weights": (
        "one model", "two", (World, "broadcast_model"), _other_weights
    ),
    "every process adds its own noise": ("noise", "two", (SharedNoise, "add_"), _own_noise),
    "a tensor that nobody owns": ("noise", "two", (SharedNoise, "_owned"), _nobodys),
    "one process's noise halved": ("noise", "two", _NOISE, _scaled(0.5, _rank_one)),
}  # fmt: skip
"""By name: the check that sees it, in how many processes, and what is replaced, by what."""
