"""The samplers of a plan: users (ULS), examples (ELS), and the shuffle that claims nothing."""

from __future__ import annotations

import numpy as np

from userdp.cohorts.cohort import Cohort, Indices, Sampler
from userdp.cohorts.poisson import distinct_indices, poisson_indices, secret_generator
from userdp.errors import UseError
from userdp.guarantees import Sampling
from userdp.plan import Plan, StepRecord


def build_sampler(
    plan: Plan,
    counts: Indices,
    *,
    unsafe_seed: int | None = None,
    shared_secret: int | None = None,
) -> Sampler:
    """The sampler whose draws `plan.mechanism` accounts for.

    Args:
        plan: sampling, probability and group size come from here and from nowhere else.
        counts: (users,), the number of examples of each training user, each at least 1.
        unsafe_seed: fixes the draws; for tests only, since a known seed voids amplification.
        shared_secret: 256 fresh bits of one operating system, for processes that draw alike.
    """
    counts = np.asarray(counts, dtype=np.int64)
    if counts.ndim != 1 or not (counts >= 1).all():
        raise UseError("counts must be a vector of at least 1 example per user")
    generator = secret_generator(shared_secret if unsafe_seed is None else unsafe_seed)
    units: _Units = (
        _Users(counts, plan) if plan.sampling is Sampling.USERS else _Examples(counts, plan)
    )
    if plan.unsafe_shuffle:
        return _ShuffleSampler(units, plan, generator)
    return _PoissonSampler(units, plan, generator)


class _Units:
    """What is drawn: turns indices of units into rows."""

    sampling: Sampling
    total: int

    def rows_of(self, units: Indices, generator: np.random.Generator) -> Cohort:
        raise NotImplementedError


class _Users(_Units):
    """ULS: a unit is a user with at most G of its examples, drawn afresh at each step.

    Source: Charles et al. 2024, Algorithm 2 (``Sample D_u^t of size at most G``).
    """

    sampling = Sampling.USERS

    def __init__(self, counts: Indices, plan: Plan) -> None:
        self._counts = counts
        self._group_size = plan.group_size
        self.total = len(counts)

    def rows_of(self, units: Indices, generator: np.random.Generator) -> Cohort:
        group = self._group_size
        picked = [
            np.sort(distinct_indices(generator, int(count), group))
            if count > group
            else np.arange(count, dtype=np.int64)
            for count in self._counts[units]
        ]
        sizes = np.array([len(rows) for rows in picked], dtype=np.int64)
        return Cohort(
            users=np.repeat(units, sizes),
            examples=np.concatenate(picked) if picked else np.empty(0, dtype=np.int64),
            offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        )


class _Examples(_Units):
    """ELS: a unit is one example; of each user the first G in the order of `counts`' store.

    Which G examples those are is decided once per user by `userdp.data.selection`; here a user
    has ``min(count, G)`` of them, ranks 0 up to that.
    Source: Charles et al. 2024, Algorithm 1 (``D_sub``).
    """

    sampling = Sampling.EXAMPLES

    def __init__(self, counts: Indices, plan: Plan) -> None:
        self._ends = np.cumsum(np.minimum(counts, plan.group_size))
        self.total = int(self._ends[-1]) if len(counts) else 0

    def rows_of(self, units: Indices, generator: np.random.Generator) -> Cohort:
        users = np.searchsorted(self._ends, units, side="right").astype(np.int64)
        starts = np.where(users > 0, self._ends[users - 1], 0)
        return Cohort(
            users=users,
            examples=units - starts,
            offsets=np.arange(len(units) + 1, dtype=np.int64),
        )


class _PoissonSampler(Sampler):
    """Every unit independently with the plan's probability, afresh at each step."""

    def __init__(self, units: _Units, plan: Plan, generator: np.random.Generator) -> None:
        self._units = units
        self._probability = plan.sampling_probability
        self._group_size = plan.group_size
        self._generator = generator

    def draw(self) -> Cohort:
        drawn = poisson_indices(self._generator, self._units.total, self._probability)
        return self._units.rows_of(drawn, self._generator)

    def record(
        self, *, noise_std: float, l2_clip_norm: float, count_noise_std: float | None = None
    ) -> StepRecord:
        return StepRecord(
            sampling=self._units.sampling,
            sampling_probability=self._probability,
            group_size=self._group_size,
            l2_clip_norm=l2_clip_norm,
            noise_std=noise_std,
            count_noise_std=count_noise_std,
        )


class _ShuffleSampler(Sampler):
    """Batches of a shuffled pass over the data: what most trainers do, and no ε covers."""

    def __init__(self, units: _Units, plan: Plan, generator: np.random.Generator) -> None:
        self._units = units
        self._probability = plan.sampling_probability
        self._group_size = plan.group_size
        self._size = max(1, round(plan.sampling_probability * units.total))
        self._generator = generator
        self._queue = np.empty(0, dtype=np.int64)

    def draw(self) -> Cohort:
        if len(self._queue) < self._size:
            self._queue = self._generator.permutation(self._units.total)
        drawn, self._queue = self._queue[: self._size], self._queue[self._size :]
        return self._units.rows_of(np.sort(drawn), self._generator)

    def record(
        self, *, noise_std: float, l2_clip_norm: float, count_noise_std: float | None = None
    ) -> StepRecord:
        return StepRecord(
            sampling=Sampling.UNSAFE_SHUFFLE,
            sampling_probability=self._probability,
            group_size=self._group_size,
            l2_clip_norm=l2_clip_norm,
            noise_std=noise_std,
            count_noise_std=count_noise_std,
        )
