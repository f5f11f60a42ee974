"""Private runs broken on purpose, below what the audit's observer sees: what it must catch.

Each takes a `PrivateRun` that has not begun and changes it in place, while its ledger goes on to
claim what the plan says. For the audit's tests and its study; nothing of the product imports this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

from userdp.auditing.extra_run import Sabotage
from userdp.cohorts import Cohort, Sampler
from userdp.cohorts.poisson import poisson_indices
from userdp.gradients import ClippedSum, NoiseSource, Units
from userdp.plan import StepRecord
from userdp.training.private import PrivateRun


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


class Redrawn(Sampler):
    """Draws other units than the run's sampler would, and records what that one says."""

    def __init__(self, honest: Sampler) -> None:
        self._honest = honest
        self._queue = np.empty(0, dtype=np.int64)

    def draw(self) -> Cohort:
        inside = self._honest.__dict__
        units, generator = inside["_units"], inside["_generator"]
        chosen = self.choose(units.total, inside["_probability"], generator)
        found: Cohort = units.rows_of(np.sort(chosen), generator)
        return found

    def choose(self, total: int, probability: float, draw: np.random.Generator) -> np.ndarray:
        raise NotImplementedError

    def record(
        self, *, noise_std: float, l2_clip_norm: float, count_noise_std: float | None = None
    ) -> StepRecord:
        return self._honest.record(
            noise_std=noise_std, l2_clip_norm=l2_clip_norm, count_noise_std=count_noise_std
        )


class Shuffled(Redrawn):
    """Batches of a shuffled pass, under the name of Poisson sampling."""

    def choose(self, total: int, probability: float, draw: np.random.Generator) -> np.ndarray:
        size = max(1, round(probability * total))
        if len(self._queue) < size:
            self._queue = draw.permutation(total)
        chosen, self._queue = self._queue[:size], self._queue[size:]
        return chosen


class FixedSize(Redrawn):
    """Batches of a fixed size, drawn afresh at each step."""

    def choose(self, total: int, probability: float, draw: np.random.Generator) -> np.ndarray:
        return draw.choice(total, max(1, round(probability * total)), replace=False)


class TwiceAsOften(Redrawn):
    """Poisson sampling of twice the probability."""

    def choose(self, total: int, probability: float, draw: np.random.Generator) -> np.ndarray:
        return poisson_indices(draw, total, min(1.0, 2 * probability))


def _with_noise(source: Callable[[], NoiseSource]) -> Sabotage:
    def broken(run: PrivateRun) -> None:
        run._noise = source()

    return broken


def _with_draws(kind: type[Redrawn]) -> Sabotage:
    def broken(run: PrivateRun) -> None:
        run._sampler = kind(run._sampler)

    return broken


def not_clipped(run: PrivateRun) -> None:
    """Twice the norm gets through, and the engine says nothing."""
    honest = run._clip

    def twice(units: Units) -> ClippedSum:
        found = honest(units)
        for value in found.value.values():
            value *= 2
        return found

    run._clip = twice


under_noised = _with_noise(lambda: ScaledNoise(0.1))
noiseless = _with_noise(lambda: ScaledNoise(0.001))
reused = _with_noise(Reused)
reused_within = _with_noise(ReusedWithin)
shuffled = _with_draws(Shuffled)
fixed_size = _with_draws(FixedSize)
twice_as_often = _with_draws(TwiceAsOften)

BROKEN: Mapping[str, Sabotage] = {
    "ten times too little noise": under_noised,
    "shuffled batches": shuffled,
    "noise re-used at every step": reused,
    "noise shared by tensors": reused_within,
    "twice the clip norm": not_clipped,
    "batches of a fixed size": fixed_size,
    "twice the sampling probability": twice_as_often,
    "a thousandth of the noise": noiseless,
}
