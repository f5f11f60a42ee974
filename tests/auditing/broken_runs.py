"""Private runs broken on purpose, below what the audit's observer sees: what it must catch.

Each takes a `PrivateRun` that has not begun and changes it in place, while its ledger goes on to
claim what the plan says. For the audit's tests and its study; nothing of the product imports this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from userdp.auditing import extra_run
from userdp.auditing.observer import watch
from userdp.gradients import ClippedSum, NoiseSource
from userdp.sampling.coins import poisson_indices
from userdp.training.private_run import PrivateRun


class ScaledNoise(NoiseSource):
    """So many times the standard deviation asked for."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def add_(self, value: dict[str, Tensor], noise_std: float) -> None:
        super().add_(value, self._factor * noise_std)


class Reused(NoiseSource):
    """The same noise at every step."""

    def add_(self, value: dict[str, Tensor], noise_std: float) -> None:
        NoiseSource(unsafe_noise_seed=7).add_(value, noise_std)


class ReusedWithin(NoiseSource):
    """Fresh noise per step, but every tensor begins with the same numbers."""

    def add_(self, value: dict[str, Tensor], noise_std: float) -> None:
        seed = int(np.random.default_rng().integers(2**62))
        for name, tensor in value.items():
            NoiseSource(unsafe_noise_seed=seed).add_({name: tensor}, noise_std)


Sabotage = Callable[[PrivateRun], None]


@contextmanager
def broken(sabotage: Sabotage) -> Iterator[None]:
    """Extra runs are broken, below what the observer sees."""

    def watch_broken(run: PrivateRun, *arguments: Any) -> Any:
        sabotage(run)
        return watch(run, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extra_run, "watch", watch_broken)
        yield


Draws = Callable[[int, float, np.random.Generator], Iterator[NDArray[np.int64]]]
"""Of the units that there are, with which probability, from which generator: those of each step."""


def _shuffled_draws(total: int, probability: float, draw: np.random.Generator) -> Iterator[Any]:
    """Batches of a shuffled pass, under the name of Poisson sampling."""
    size, queue = max(1, round(probability * total)), np.empty(0, dtype=np.int64)
    while True:
        if len(queue) < size:
            queue = draw.permutation(total)
        chosen, queue = queue[:size], queue[size:]
        yield np.sort(chosen)


def _draws_twice_as_often(
    total: int, probability: float, draw: np.random.Generator
) -> Iterator[Any]:
    """Poisson sampling of twice the probability."""
    while True:
        yield poisson_indices(draw, total, min(1.0, 2 * probability))


def with_noise(source: Callable[[], NoiseSource]) -> Sabotage:
    def sabotage(run: PrivateRun) -> None:
        run.mechanism.noise = source()

    return sabotage


def with_draws(draws: Draws) -> Sabotage:
    def sabotage(run: PrivateRun) -> None:
        """The run draws other units, and records what it was to draw."""
        sampling, sampler = run.plan.sampling, run.mechanism.sampler
        total = sampling.total_units(run.mechanism.collator.counts)
        sampler._draws = draws(total, sampling.chance(total), sampler._generator)

    return sabotage


def not_clipped(run: PrivateRun) -> None:
    """Twice the norm gets through, and the engine says nothing."""
    honest = run.mechanism.engine

    def twice(*arguments: Any, **options: Any) -> ClippedSum:
        found = honest(*arguments, **options)
        for value in found.value.values():
            value *= 2
        return found

    run.mechanism.engine = twice  # type: ignore[assignment]


under_noised = with_noise(lambda: ScaledNoise(0.1))
noiseless = with_noise(lambda: ScaledNoise(0.001))
reused = with_noise(Reused)
reused_within = with_noise(ReusedWithin)
shuffled = with_draws(_shuffled_draws)
twice_as_often = with_draws(_draws_twice_as_often)
