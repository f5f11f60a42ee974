"""What the processes of `test_processes` do; also what makes them wrong on purpose."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from tests.training import distributed_jobs
from tests.training.checks import subjects
from tests.training.checks.subjects import failures, subject_of
from userdp.data.store import UserStore
from userdp.gradients import NoiseSource
from userdp.gradients.shards import ShardNoise
from userdp.sampling import coins
from userdp.training import distributed_run, shares
from userdp.training.distributed import World, current_world
from userdp.training.distributed_run import Dealing
from userdp.training.shared_noise import SharedNoise


def asked(store: Path, broken: str | None, options: dict) -> tuple[list[str], bytes, bool]:
    """What did not hold; the weights; whether nothing was drawn."""
    FAULTS[broken]()
    how = {name: options[name] for name in ("lora", "sharded") if name in options}
    model = distributed_jobs.model_of(UserStore.open(store), **how)
    current_world().broadcast_model(model)
    before = torch.get_rng_state()
    seed = options.get("unsafe_noise_seed")
    found = failures(subject_of(model, distributed_jobs.plan_of("uls"), unsafe_noise_seed=seed))
    same = torch.equal(before, torch.get_rng_state())
    return found, distributed_jobs.weights_of(model).numpy().tobytes(), same


def _rank_one() -> bool:
    return current_world().rank == 1


def _noise_of_rank_one(scale: float) -> None:
    honest = NoiseSource.add_

    def add_(self, value, noise_std):
        honest(self, value, noise_std * (scale if _rank_one() else 1.0))

    NoiseSource.add_ = add_


def _noise_of_everybody() -> None:
    together = Dealing.together

    def noisy(self, summed, rows, **options):
        if _rank_one():
            NoiseSource().add_(summed.value, 1.0)
        return together(self, summed, rows, **options)

    Dealing.together = noisy


def _own_noise() -> None:
    SharedNoise.add_ = lambda self, value, noise_std: NoiseSource().add_(value, noise_std)


def _one_seed() -> None:
    same = NoiseSource(unsafe_noise_seed=3)
    ShardNoise.add_ = lambda self, value, noise_std: same.add_(value, noise_std)


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


def _own_cohorts() -> None:
    coins.secret_generator = lambda seed=None: np.random.default_rng()
    subjects.secret_generator = coins.secret_generator


def _half_a_sum() -> None:
    World.sum_to_shares = lambda self, tensors: None


def _short_draws() -> None:
    """The last number of each share gets no noise; whose it is, everybody knows."""
    honest = World.own_share

    def short(self, tensors):
        own = honest(self, tensors)
        last = list(own)[-1]
        return {**own, last: own[last][:-1]}

    World.own_share = short


def _gaps() -> None:
    """The last number of each share is nobody's, for those who draw and for those who check."""
    honest = shares.stretch

    def short(numbers, rank, size):
        begin, end = honest(numbers, rank, size)
        return begin, max(begin, end - 1)

    shares.stretch = short


def _clean_share() -> None:
    """One process hands out its share as it was before the noise."""
    honest = World.shares_to_all

    def clean(self, tensors, **how):
        if _rank_one():
            for own in self.own_share(tensors).values():
                own.zero_()
        honest(self, tensors, **how)

    World.shares_to_all = clean


def _known_coins() -> None:
    distributed_run.secrets = SimpleNamespace(randbits=random.getrandbits)


FAULTS = {
    None: lambda: None,
    "one process's noise doubled": lambda: _noise_of_rank_one(2.0),
    "one process without noise": lambda: _noise_of_rank_one(1e-12),
    "one process's noise halved": lambda: _noise_of_rank_one(0.5),
    "noise of every process in the sum": _noise_of_everybody,
    "every process adds its own noise": _own_noise,
    "one process hands out zeros": _clean_share,
    "numbers between the shares of two processes": _gaps,
    "numbers of each share without noise": _short_draws,
    "one seed for all parts": _one_seed,
    "one process has other weights": _other_weights,
    "every process clips all units": _everybody_clips_all,
    "every process draws its own cohort": _own_cohorts,
    "the other processes' sums are lost": _half_a_sum,
    "cohorts from a public seed": _known_coins,
}
"""By name: makes this process wrong, or none of them."""
