"""An observer inside a private run, who sees the draws, the noise and the noisy sums.

It is the only place outside `userdp.training.private_run` that reaches into a `PrivateRun`. It
wraps one method of the sampler and one of the noise source; the step itself, the ledger and the
gradient engine are the run's own. The observations are exact, and no ε covers them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from userdp.gradients import Units
from userdp.sampling.draws import Cohort
from userdp.training.private_run import PrivateRun
from userdp.training.step_mechanism import StepMechanism

# Noise is sampled at places of 64 numbers, in every tensor and far inside large ones, since a
# repeated block would show as a repeated place. 2^24 float32 numbers of all steps are kept.
_PART, _MOST_PARTS, _APART, _MOST_VALUES = 64, 64, 1 << 17, 1 << 24
_FIRST = 4  # canaries that choose which coordinates are kept
_LOOKS, _LOOK_UNITS = 3, 4  # steps at which a unit is left out, beside at most three others


@dataclass(kw_only=True, slots=True)
class Observed:
    """A run's steps, as seen from inside. Operator-only.

    Args:
        population: how many units the sampler draws from.
        parts: the sampled places in a step's noise, as (first, last) columns of ``noise``.
        cohorts: per step, int64 numbers of the drawn units.
        noise: per step, float32 (columns,): the added noise over its standard deviation by the
            plan.
        answers: per step, float64 (canaries,): the noisy sum along each canary's direction, in
            units of the step's clip norm.
        moves: how far leaving one drawn unit out moved a sum, in units of the clip norm.
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
        self, vectors: Iterator[dict[str, Tensor]], *, count: int, most_bytes: int = 1 << 28
    ) -> None:
        first = [_flat(vector) for vector in islice(vectors, _FIRST)]
        largest = torch.stack(first).square().sum(0)
        most = max(1, most_bytes // (4 * count))
        self._kept = largest.topk(min(most, len(largest))).indices
        rows, norms = [], []
        for vector in chain(first, map(_flat, vectors)):
            norms.append(float(torch.linalg.vector_norm(vector, dtype=torch.float64)))
            rows.append(vector[self._kept].cpu())
        self.norms = np.array(norms)
        self.units = nn.functional.normalize(torch.stack(rows).double(), eps=1e-30).float()

    def gram(self) -> NDArray[np.float64]:
        """float64 (canaries, canaries): inner products of the directions."""
        return np.asarray((self.units @ self.units.T).double().numpy())

    def along(self, value: dict[str, Tensor]) -> NDArray[np.float64]:
        """float64 (canaries,): ``value`` along each direction."""
        return np.asarray((self.units @ _flat(value)[self._kept].cpu()).double().numpy())


def _flat(value: dict[str, Tensor]) -> Tensor:
    return torch.cat([value[name].reshape(-1).float() for name in sorted(value)])


def watch(run: PrivateRun, directions: Directions | None = None) -> Observed:
    """Put an observer around a run that has not begun; the result fills as the run goes on.

    The run's sampler and noise source pass every call on, and note its result.
    """
    mechanism, sampling = run.mechanism, run.plan.sampling
    counts = np.minimum(mechanism.collator.counts, sampling.items)
    first_unit = np.cumsum(counts) - counts  # of each user, where units are examples
    seen = Observed(population=sampling.total_units(np.asarray(mechanism.collator.counts)))
    draw, add_ = mechanism.sampler.draw, mechanism.noise.add_
    without_noise: list[Cohort] = []  # at most one: drawn, and its sum not yet noised

    def draw_and_note() -> Cohort:
        cohort = draw()
        first = cohort.offsets[:-1]
        units = cohort.users[first]
        if not sampling.by_user:
            units = first_unit[units] + cohort.examples[first]
        seen.cohorts.append(units.astype(np.int64))
        without_noise[:] = [cohort]
        return cohort

    def add_and_note(value: dict[str, Tensor], noise_std: float) -> None:
        if not without_noise:  # the first noise after a draw is the sum's; this is a count's
            add_(value, noise_std)
            return
        cohort, places = without_noise.pop(), _places(value, _MOST_VALUES // run.plan.steps)
        ends = np.cumsum([end - start for _, start, end in places]).tolist()
        seen.parts = list(zip([0, *ends], ends, strict=False))
        before = _sample(value, places)
        if len(seen.moves) < _LOOKS:
            seen.moves += _move(mechanism, cohort)
        add_(value, noise_std)
        seen.noise.append(((_sample(value, places) - before) / noise_std).float().numpy())
        if directions is not None:
            seen.answers.append(directions.along(value) / mechanism.l2_clip_norm)

    # In place of the methods themselves, which a type checker takes for a mistake: so the observed
    # run is like any other.
    mechanism.sampler.draw = draw_and_note  # type: ignore[method-assign]
    mechanism.noise.add_ = add_and_note  # type: ignore[method-assign]
    return seen


Place = tuple[str, int, int]
"""A tensor's name, and from where to where in it."""


def _places(value: dict[str, Tensor], most_values: int) -> list[Place]:
    """Beginnings of tensors, and places far inside large ones, as evenly as they may be."""
    places = [
        (name, start, min(start + _PART, v.numel()))
        for name, v in value.items()
        for start in range(0, v.numel(), _APART)
    ]
    return places[:: -(-len(places) // min(_MOST_PARTS, max(1, most_values // _PART)))]


def _sample(value: dict[str, Tensor], places: list[Place]) -> Tensor:
    parts = (value[name].reshape(-1)[start:end] for name, start, end in places)
    return torch.cat([part.double().cpu() for part in parts])


def _move(mechanism: StepMechanism, cohort: Cohort) -> list[float]:
    """How far a drawn unit moves the sum of at most three others; empty where it cannot be seen."""
    if not cohort.units or mechanism.collator._drawn is not None:
        return []  # a selector draws, so that gathering twice gives other rows
    units = mechanism.collator(cohort.part(0, min(cohort.units, _LOOK_UNITS)))
    everybody, again = mechanism.clip(units).value, mechanism.clip(units).value
    if any(not torch.equal(v, again[n]) for n, v in everybody.items()):
        return []  # the others would have other dropout masks without the unit
    without = mechanism.clip(units.select(1, len(units))).value
    square = sum(float((v - without[n]).double().square().sum()) for n, v in everybody.items())
    return [square**0.5 / mechanism.l2_clip_norm]


def clipped_gradients(run: PrivateRun, units: Units) -> Iterator[dict[str, Tensor]]:
    """Each unit's clipped gradient by the run's own engine, at the weights of now."""
    for number in range(len(units)):
        yield run.mechanism.clip(units.select(number, number + 1)).value
