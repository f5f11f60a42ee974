"""A run so small that its audit takes about a second, and three ways to break it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.training.toy import cycles, toy_store
from userdp.auditing.extra_run import ExtraRun, extra_run
from userdp.data.store import UserStore
from userdp.gradients import NoiseSource
from userdp.plan import Plan
from userdp.training.config import OptimizerName, TrainConfig

CONFIG = TrainConfig(
    model="new",
    layers=1,
    width=16,
    heads=2,
    learning_rate=0.02,
    optimizer=OptimizerName.SGD,
    micro_batch=64,
)
CANARIES = 48


def audit_store(folder: Path, users: int = 200) -> UserStore:
    return toy_store(folder, cycles(users), held_out=0.2)


def audit_plan(**changes) -> Plan:
    values = {
        "population": 200,
        "cohort_size": 20,
        "group_size": 2,
        "steps": 25,
        "l2_clip_norm": 0.5,
        "target_delta": 1e-5,
        "noise_multiplier": 1.0,
    }
    return Plan.for_users(**{**values, **changes})


class UnderNoised(NoiseSource):
    """A tenth of the standard deviation asked for."""

    def add_(self, value, noise_std):
        super().add_(value, noise_std / 10)


class Reused(NoiseSource):
    """The same noise at every step."""

    def add_(self, value, noise_std):
        NoiseSource(unsafe_noise_seed=7).add_(value, noise_std)


class ReusedWithin(NoiseSource):
    """Fresh noise per step, but every tensor begins with the same numbers."""

    def add_(self, value, noise_std):
        seed = int(np.random.default_rng().integers(2**62))
        for name, tensor in value.items():
            NoiseSource(unsafe_noise_seed=seed).add_({name: tensor}, noise_std)


def under_noised(run):
    run._noise = UnderNoised()


def reused(run):
    run._noise = Reused()


def reused_within(run):
    run._noise = ReusedWithin()


def not_clipped(run):
    """Twice the norm gets through, and the engine says nothing."""
    honest = run._clip

    def twice(units):
        found = honest(units)
        for value in found.value.values():
            value *= 2
        return found

    run._clip = twice


def shuffled(run):
    """Batches of a shuffled pass, under the name of Poisson sampling."""
    honest = run._sampler

    class Shuffled(type(honest)):
        def __init__(self):
            self.__dict__ |= honest.__dict__
            self._queue = np.empty(0, dtype=np.int64)

        def draw(self):
            size = max(1, round(self._probability * self._units.total))
            if len(self._queue) < size:
                self._queue = self._generator.permutation(self._units.total)
            drawn, self._queue = self._queue[:size], self._queue[size:]
            return self._units.rows_of(np.sort(drawn), self._generator)

    run._sampler = Shuffled()


def audited(store: UserStore, folder: Path, plan: Plan | None = None, **options) -> ExtraRun:
    return extra_run(
        store,
        plan or audit_plan(),
        CONFIG,
        work=folder / "work",
        **{"canaries": CANARIES, **options},
    )
