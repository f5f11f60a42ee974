"""What an observer inside a private run sees: the draws, the noise, the noisy sums.

The one place outside `userdp.training.private_run` that reaches into a `PrivateRun`. It wraps the
two objects that a step asks, the sampler and the noise source; the step itself, the ledger and the
gradient engine are the run's own. What it sees is exact, and no ε covers it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from userdp.gradients import NoiseSource, Units
from userdp.noise.gaussian import NoiseSampler
from userdp.sampling.cohort import Cohort, Sampler
from userdp.training.private_run import PrivateRun

# Noise is sampled at places of 64 numbers, in every tensor and far inside large ones, since a
# repeated block would show as a repeated place. 2^24 float32 numbers of all steps are kept.
_PART, _MOST_PARTS, _APART, _MOST_VALUES = 64, 64, 1 << 17, 1 << 24
_FIRST, _PEEK_BYTES = 8, 1 << 30  # canaries that choose which coordinates are kept
_LOOKS, _LOOK_UNITS = 3, 4  # steps at which a unit is left out, beside at most three others


@dataclass(kw_only=True, slots=True)
class Observed:
    """A run's steps, as seen from inside. Operator-only.

    Args:
        population: units that the sampler draws from.
        parts: places in a step's noise that are sampled: (first, last) columns of ``noise``.
        cohorts: per step, int64 numbers of the drawn units.
        noise: per step, float32 (columns,): what was added, over what the plan says is its std.
        answers: per step, float64 (canaries,): the noisy sum along each direction watched, in units
            of the step's clip norm.
        moves: by how much leaving a drawn unit out moved a sum, over the clip norm.
    """

    population: int
    parts: list[tuple[int, int]] = field(default_factory=list)
    cohorts: list[NDArray[np.int64]] = field(default_factory=list)
    noise: list[NDArray[np.float32]] = field(default_factory=list)
    answers: list[NDArray[np.float64]] = field(default_factory=list)
    moves: list[float] = field(default_factory=list)


class Directions:
    """Unit vectors in parameter space, one per canary: the gradient that it adds, clipped.

    Args:
        vectors: ``{name: tensor}`` of each canary.
        count: how many there are.
        most_bytes: memory for all; beyond it only the coordinates where the first few canaries
            are largest are kept.

    Attributes:
        norms: float64 (canaries,), of the whole vectors.
        energy: the part of the vectors' squares that lies in what is kept, in [0, 1].
    """

    def __init__(
        self, vectors: Iterator[dict[str, Tensor]], *, count: int, most_bytes: int
    ) -> None:
        first = [next(vectors)]
        bytes_each = sum(v.numel() * v.element_size() for v in first[0].values())
        first += islice(vectors, min(count, _FIRST, max(1, _PEEK_BYTES // bytes_each)) - 1)
        self._kept = _largest(first, max(1, most_bytes // (4 * count)))
        rows, norms = [], []
        for vector in chain(first, vectors):
            norms.append(math.sqrt(sum(float(v.double().square().sum()) for v in vector.values())))
            rows.append(self._on_kept(vector).float())
        self.norms = np.array(norms)
        stacked = torch.stack(rows)
        lengths = stacked.double().norm(dim=1).numpy()
        usable = np.maximum(self.norms, 1e-30)
        self.energy = float(np.mean((lengths / usable) ** 2))
        self.units = stacked / torch.from_numpy(np.maximum(lengths, 1e-30)).float()[:, None]

    def gram(self) -> NDArray[np.float64]:
        """float64 (canaries, canaries): inner products of the directions."""
        return np.asarray((self.units @ self.units.T).double().numpy())

    def along(self, value: dict[str, Tensor]) -> NDArray[np.float64]:
        """float64 (canaries,): ``value`` along each direction."""
        return np.asarray((self.units @ self._on_kept(value).float()).double().numpy())

    def _on_kept(self, value: dict[str, Tensor]) -> Tensor:
        return torch.cat([value[name].reshape(-1)[at].cpu() for name, at in self._kept.items()])


def _largest(vectors: list[dict[str, Tensor]], budget: int) -> dict[str, Tensor]:
    """By tensor, the ``budget`` coordinates of the greatest sum of squares; all if they fit."""
    sums = {name: sum(v[name].reshape(-1).square() for v in vectors) for name in vectors[0]}
    flat = torch.cat([torch.as_tensor(square).cpu() for square in sums.values()])
    if len(flat) <= budget:
        return {name: torch.arange(v.numel(), device=v.device) for name, v in vectors[0].items()}
    chosen = torch.zeros(len(flat), dtype=torch.bool)
    chosen[flat.topk(budget).indices] = True
    parts = torch.split(chosen, [v.numel() for v in vectors[0].values()])
    return {
        name: part.nonzero().flatten().to(v.device)
        for part, (name, v) in zip(parts, vectors[0].items(), strict=True)
    }


def watch(run: PrivateRun, directions: Directions | None = None) -> Observed:
    """Put an observer around a run that has not begun; returns what it fills."""
    sampling, counts = run.plan.sampling, np.asarray(run.mechanism.collator.counts)
    starts = np.concatenate([[0], np.cumsum(np.minimum(counts, sampling.items))])
    seen = Observed(population=int(starts[-1]))
    sampler = _WatchedSampler(run.mechanism.sampler, seen, None if sampling.by_user else starts)
    run.mechanism.sampler = sampler
    run.mechanism.noise = _WatchedNoise(run, seen, sampler, directions)
    return seen


class _WatchedSampler(Sampler):
    """Passes every draw on, and notes it. ``starts``: of each user's units, if not users are."""

    def __init__(self, inner: Sampler, seen: Observed, starts: NDArray[np.int64] | None) -> None:
        self.sampling = inner.sampling
        self._inner, self._seen, self._starts = inner, seen, starts
        self.cohort: Cohort | None = None

    def draw(self) -> Cohort:
        cohort = self._inner.draw()
        first = cohort.offsets[:-1]
        units = cohort.users[first]
        if self._starts is not None:
            units = self._starts[units] + cohort.examples[first]
        self._seen.cohorts.append(units.astype(np.int64))
        self.cohort = cohort
        return cohort


class _WatchedNoise(NoiseSource):
    """Passes every call on, and notes what it added. The first call after a draw is the sum's."""

    def __init__(
        self,
        run: PrivateRun,
        seen: Observed,
        sampler: _WatchedSampler,
        directions: Directions | None,
    ) -> None:
        self._run, self._inner, self._seen = run, run.mechanism.noise, seen
        self._sampler, self._directions = sampler, directions
        self._places: list[tuple[str, int, int]] = []

    @property
    def unsafe(self) -> bool:
        return self._inner.unsafe

    def sampler_on(self, device: torch.device) -> NoiseSampler:
        return self._inner.sampler_on(device)

    def add_(self, value: dict[str, Tensor], noise_std: float) -> None:
        cohort, self._sampler.cohort = self._sampler.cohort, None
        if cohort is None:  # the count of adaptive clipping
            self._inner.add_(value, noise_std)
            return
        if not self._places:
            self._choose(value)
        before = self._sample(value)
        if len(self._seen.moves) < _LOOKS:
            self._look(cohort)
        self._inner.add_(value, noise_std)
        added = (self._sample(value) - before) / noise_std
        self._seen.noise.append(added.float().numpy())
        if self._directions is not None:
            self._seen.answers.append(
                self._directions.along(value) / self._run.mechanism.l2_clip_norm
            )

    def state(self) -> dict[str, Tensor]:
        return self._inner.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._inner.restore(state)

    def _choose(self, value: dict[str, Tensor]) -> None:
        """Beginnings of tensors, and places far inside large ones: parts of equal length."""
        starts = [
            (name, start, min(start + _PART, v.numel()))
            for name, v in value.items()
            for start in range(0, v.numel(), _APART)
        ]
        apart = max(1, len(starts) // _MOST_PARTS)
        self._places = starts[::apart]
        steps = self._run.plan.steps
        while len(self._places) > 1 and len(self._places) * _PART * steps > _MOST_VALUES:
            self._places = self._places[::2]
        at = 0
        for _, start, end in self._places:
            self._seen.parts.append((at, at + end - start))
            at += end - start

    def _sample(self, value: dict[str, Tensor]) -> Tensor:
        flat = {name: v.reshape(-1) for name, v in value.items()}
        return torch.cat([flat[n][start:end].double().cpu() for n, start, end in self._places])

    def _look(self, cohort: Cohort) -> None:
        """How far one drawn unit moves the sum, beside at most three others (invariant 3)."""
        if not cohort.units or self._run.mechanism.collator._selector is not None:
            return  # a selector draws, so that gathering twice gives other rows
        units = self._run.mechanism.collator(cohort.part(0, min(cohort.units, _LOOK_UNITS)))
        everybody, again = self._run.mechanism.clip(units), self._run.mechanism.clip(units)
        if any(not torch.equal(v, again.value[n]) for n, v in everybody.value.items()):
            return  # the others would have other dropout masks without the unit
        without = self._run.mechanism.clip(units.select(1, len(units)))
        square = sum(
            float((v - without.value[n]).double().square().sum())
            for n, v in everybody.value.items()
        )
        self._seen.moves.append(square**0.5 / self._run.mechanism.l2_clip_norm)


def clipped_gradients(run: PrivateRun, units: Units) -> Iterator[dict[str, Tensor]]:
    """Each unit's clipped gradient by the run's own engine, at the weights of now."""
    for number in range(len(units)):
        yield run.mechanism.clip(units.select(number, number + 1)).value
