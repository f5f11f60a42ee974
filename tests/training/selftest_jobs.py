"""What the processes of `test_selftest` do; also what makes them wrong on purpose."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config

from tests.gradients.far_device import FAR, far_machine
from userdp.gradients import ENGINES, NoiseSource
from userdp.training.distributed import World, current_world
from userdp.training.distributed_run import Dealing, SharedNoise
from userdp.training.selftest import CHECKS, Measured, Scene, made_up_units

TINY = GPT2Config(
    vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=8, bos_token_id=0, eos_token_id=0
)


def tiny_model() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = AutoModelForCausalLM.from_config(TINY)
    return model


def scene(model: nn.Module | None = None):
    """A tiny model and four made-up units."""
    model = tiny_model() if model is None else model
    found = Scene(model, made_up_units(model, units=3, group_size=2))
    found.engine = ENGINES["reference"]
    return found


def failures(scene: Scene, name: str) -> list[Measured]:
    """What the check of this name finds wrong."""
    (check,) = (check for check in CHECKS if check.name == name)
    return [one for one in check.measure(scene) if not one.passed]


def failing(names: list[str], fault: str | None, far: bool = False) -> list[str]:
    """Those of the named checks that fail in this process, with a fault that is planted."""
    FAULTS[fault]()
    with far_machine(index=current_world().rank) if far else nullcontext():
        made = scene(tiny_model().to(FAR if far else "cpu"))
        return [name for name in names if failures(made, name)]


def _rank_one() -> bool:
    return current_world().rank == 1


def _noise_of_rank_one(scale: float) -> None:
    honest = NoiseSource.add_

    def add_(self, value, noise_std):
        honest(self, value, noise_std * (scale if _rank_one() else 1.0))

    NoiseSource.add_ = add_


def _own_noise() -> None:
    SharedNoise.add_ = lambda self, value, noise_std: NoiseSource().add_(value, noise_std)


def _other_weights() -> None:
    def keep(self, model):
        if _rank_one():
            with torch.no_grad():
                next(iter(model.parameters())).add_(1e-3)

    World.broadcast_model = keep


def _everybody_clips_all() -> None:
    mine = Dealing.mine

    def everybody(self, cohort):
        mine(self, cohort)
        self._units = cohort.units * self._world.size  # and the check of each step is fooled
        return cohort

    Dealing.mine = everybody


def _nobodys() -> None:
    """One process takes another for the owner of a tensor, and neither draws its noise."""
    honest = SharedNoise._owned

    def fewer(self, value):
        return dict(list(honest(self, value).items())[1:])

    SharedNoise._owned = fewer


FAULTS = {
    None: lambda: None,
    "one process's noise halved": lambda: _noise_of_rank_one(0.5),
    "every process adds its own noise": _own_noise,
    "a tensor that nobody owns": _nobodys,
    "one process has other weights": _other_weights,
    "every process clips all units": _everybody_clips_all,
}
"""By name: makes this process wrong, or none of them."""
