"""What an observer inside a private run sees: the draws, the noise, the noisy sums.

The one place outside `userdp.training.private_run` that reaches into a `PrivateRun`. It wraps a
method of each of the two objects that a step asks, the sampler and the noise source; the step
itself, the ledger and the gradient engine are the run's own. What it sees is exact, and no ε covers
it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from userdp.gradients import Units
from userdp.sampling.cohort import Cohort
from userdp.training.private_run import PrivateRun

# Noise is sampled at places of 64 numbers, in every tensor and far inside large ones, since a
# repeated block would show as a repeated place. 2^24 float32 numbers of all steps are kept.
_PART, _MOST_PARTS, _APART, _MOST_VALUES = 64, 64, 1 << 17, 1 << 24
_FIRST = 4  # canaries that choose which coordinates are kept
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
    """

    def __init__(
        self, vectors: Iterator[dict[str, Tensor]], *, count: int, most_bytes: int
    ) -> None:
        first = list(islice(vectors, _FIRST))
        self._kept = _largest(first, max(1, most_bytes // (4 * count)))
        rows, norms = [], []
        for vector in chain(first, vectors):
            norms.append(math.sqrt(sum(float(v.double().square().sum()) for v in vector.values())))
            rows.append(self._on_kept(vector))
        self.norms = np.array(norms)
        self.units = nn.functional.normalize(torch.stack(rows).double(), eps=1e-30).float()

    def gram(self) -> NDArray[np.float64]:
        """float64 (canaries, canaries): inner products of the directions."""
        return np.asarray((self.units @ self.units.T).double().numpy())

    def along(self, value: dict[str, Tensor]) -> NDArray[np.float64]:
        """float64 (canaries,): ``value`` along each direction."""
        return np.asarray((self.units @ self._on_kept(value)).double().numpy())

    def _on_kept(self, value: dict[str, Tensor]) -> Tensor:
        kept = self._kept.items()
        return torch.cat([value[name].reshape(-1)[at].float().cpu() for name, at in kept])


def _largest(vectors: list[dict[str, Tensor]], budget: int) -> dict[str, Tensor]:
    """By tensor, the ``budget`` coordinates of the greatest sum of squares; all if they fit."""
    sums = [sum(v[name].reshape(-1).square() for v in vectors) for name in vectors[0]]
    flat = torch.cat([torch.as_tensor(square).cpu() for square in sums])
    chosen = torch.zeros(len(flat), dtype=torch.bool)
    chosen[flat.topk(min(budget, len(flat))).indices] = True
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
    watcher = _Watcher(run, seen, None if sampling.by_user else starts, directions)
    # Two methods of two objects; mypy calls that an assignment to a method, and that is what it is.
    run.mechanism.sampler.draw = watcher.draw  # type: ignore[method-assign]
    run.mechanism.noise.add_ = watcher.add_  # type: ignore[method-assign]
    return seen


class _Watcher:
    """Passes every draw and every call for noise on, and notes what they gave.

    Args:
        run: whose sampler and noise are watched.
        seen: is filled.
        starts: of each user's units, where units are examples.
        directions: along which noisy sums are noted.
    """

    def __init__(
        self,
        run: PrivateRun,
        seen: Observed,
        starts: NDArray[np.int64] | None,
        directions: Directions | None,
    ) -> None:
        self._mechanism, self._seen, self._starts = run.mechanism, seen, starts
        self._directions, self._most_values = directions, _MOST_VALUES // run.plan.steps
        self._draw, self._add = run.mechanism.sampler.draw, run.mechanism.noise.add_
        self._cohort: Cohort | None = None
        self._places: list[tuple[str, int, int]] = []

    def draw(self) -> Cohort:
        """The sampler's draw."""
        self._cohort = cohort = self._draw()
        first = cohort.offsets[:-1]
        units = cohort.users[first]
        if self._starts is not None:
            units = self._starts[units] + cohort.examples[first]
        self._seen.cohorts.append(units.astype(np.int64))
        return cohort

    def add_(self, value: dict[str, Tensor], noise_std: float) -> None:
        """The noise source's addition. The first one after a draw is the sum's."""
        cohort, self._cohort = self._cohort, None
        if cohort is None:  # the count of adaptive clipping
            self._add(value, noise_std)
            return
        if not self._places:
            self._choose(value)
        before = self._sample(value)
        if len(self._seen.moves) < _LOOKS:
            self._look(cohort)
        self._add(value, noise_std)
        added = (self._sample(value) - before) / noise_std
        self._seen.noise.append(added.float().numpy())
        if self._directions is not None:
            along = self._directions.along(value)
            self._seen.answers.append(along / self._mechanism.l2_clip_norm)

    def _choose(self, value: dict[str, Tensor]) -> None:
        """Beginnings of tensors, and places far inside large ones, as evenly as they may be."""
        starts = [
            (name, start, min(start + _PART, v.numel()))
            for name, v in value.items()
            for start in range(0, v.numel(), _APART)
        ]
        most = min(_MOST_PARTS, max(1, self._most_values // _PART))
        self._places = starts[:: -(-len(starts) // most)]
        ends = np.cumsum([end - start for _, start, end in self._places]).tolist()
        self._seen.parts += zip([0, *ends], ends, strict=False)

    def _sample(self, value: dict[str, Tensor]) -> Tensor:
        flat = {name: v.reshape(-1) for name, v in value.items()}
        return torch.cat([flat[n][start:end].double().cpu() for n, start, end in self._places])

    def _look(self, cohort: Cohort) -> None:
        """How far one drawn unit moves the sum, beside at most three others (invariant 3)."""
        mechanism = self._mechanism
        if not cohort.units or mechanism.collator._selector is not None:
            return  # a selector draws, so that gathering twice gives other rows
        units = mechanism.collator(cohort.part(0, min(cohort.units, _LOOK_UNITS)))
        everybody, again = mechanism.clip(units).value, mechanism.clip(units).value
        if any(not torch.equal(v, again[n]) for n, v in everybody.items()):
            return  # the others would have other dropout masks without the unit
        without = mechanism.clip(units.select(1, len(units))).value
        square = sum(float((v - without[n]).double().square().sum()) for n, v in everybody.items())
        self._seen.moves.append(square**0.5 / mechanism.l2_clip_norm)


def clipped_gradients(run: PrivateRun, units: Units) -> Iterator[dict[str, Tensor]]:
    """Each unit's clipped gradient by the run's own engine, at the weights of now."""
    for number in range(len(units)):
        yield run.mechanism.clip(units.select(number, number + 1)).value
