"""Private runs broken on purpose, below what the audit's observer sees: what it must catch.

Each takes a `PrivateRun` that has not begun and changes it in place, while its ledger goes on to
claim what the plan says.
"""

from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from userdp.auditing import extra_run
from userdp.auditing.observer import watch
from userdp.gradients import NoiseSource


@contextmanager
def broken(sabotage):
    """Extra runs are broken, below what the observer sees."""

    def watch_broken(run, *arguments):
        sabotage(run)
        return watch(run, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extra_run, "watch", watch_broken)
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
