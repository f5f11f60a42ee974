"""A run so small that its audit takes about a second; and runs that are broken on purpose."""

from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from tests.plans import uls_plan
from tests.training.toy import cycles, toy_store
from userdp.auditing import canaries as canaries_module
from userdp.auditing.canaries import extra_run
from userdp.auditing.observer import watch
from userdp.auditing.repetitions import Repetition
from userdp.core.stages import Progress
from userdp.gradients import NoiseSource
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


def audit_store(folder, users=200):
    return toy_store(folder, cycles(users), held_out=0.2)


def audit_plan(**changes):
    values = {"population": 200, "cohort_size": 20, "group_size": 2}
    values |= {"steps": 25, "noise_multiplier": 1.0}
    return uls_plan(**{**values, **changes})


def repetition(store, place, plan, config=CONFIG):
    return Repetition(
        store=store, plan=plan, config=config, place=place, device="cpu", progress=Progress()
    )


def audited(store, folder, plan=None, canaries=CANARIES):
    plan = plan or audit_plan()
    return extra_run(repetition(store, folder / "work", plan), plan, canaries=canaries)


# ------------------------------------------- what changes a run that has not begun, in place


@contextmanager
def broken(sabotage):
    """Extra runs are broken, below what the observer sees."""

    def watch_broken(run, *arguments):
        sabotage(run)
        return watch(run, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canaries_module, "watch", watch_broken)
        yield


def _scaled(run, *, factor):
    """So many times the standard deviation asked for."""
    add_ = run.mechanism.noise.add_
    run.mechanism.noise.add_ = lambda value, noise_std: add_(value, factor * noise_std)


under_noised, noiseless = partial(_scaled, factor=0.1), partial(_scaled, factor=0.001)


def reused(run):
    """The same noise at every step."""
    run.mechanism.noise.add_ = lambda *asked: NoiseSource(unsafe_noise_seed=7).add_(*asked)


def shuffled(run):
    """Batches of shuffled passes, under the name of Poisson sampling."""
    sampling, sampler = run.plan.sampling, run.mechanism.sampler
    total = sampling.total_units(run.mechanism.collator.counts)
    batches = total // max(1, round(sampling.chance(total) * total))

    def draws():
        while True:
            order = sampler._generator.permutation(total)
            yield from map(np.sort, np.array_split(order, batches))

    sampler._draws = draws()


def not_clipped(run):
    """Twice the norm gets through, and the engine says nothing."""
    honest = run.mechanism.engine

    def twice(*arguments, **options):
        found = honest(*arguments, **options)
        for value in found.value.values():
            value *= 2
        return found

    run.mechanism.engine = twice
