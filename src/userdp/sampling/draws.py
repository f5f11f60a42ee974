"""What a step draws, and by which coins.

`secret_generator` makes every generator that privacy rests on; `poisson_indices` and
`distinct_indices` are exact draws in time proportional to what is drawn; a `Sampler` draws one
`Cohort` per step, by the sampling of the plan.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np

from userdp.core.vocabulary import require_count, require_probability
from userdp.sampling.base import Indices, Sampling

_POOL_WORDS = 8
"""Words of 32 bits that a seed is mixed in: 256 bits."""


def secret_generator(unsafe_seed: int | None = None) -> np.random.Generator:
    """A generator that the operating system seeds with 256 secret bits.

    Amplification by sampling holds only against those who do not know the draws, so the seed is
    never derived, stored or published. ``unsafe_seed`` exists for tests, and for 256 secret bits
    that several processes share.
    """
    entropy = secrets.randbits(256) if unsafe_seed is None else unsafe_seed
    # NumPy's default pool of four words would fold the 256 bits into 128.
    seeds = np.random.SeedSequence(entropy, pool_size=_POOL_WORDS)
    return np.random.Generator(np.random.PCG64DXSM(seeds))


def poisson_indices(generator: np.random.Generator, population: int, probability: float) -> Indices:
    """Each of ``0 … population - 1`` independently with ``probability``; ascending.

    Guarantee: the distribution of independent coins: the number of heads is binomial, and given
    their number every set of indices is equally likely. Cost O(drawn), never O(population). Where
    at most 30 heads are expected NumPy never draws a number ten deviations above that, which coins
    would show with probability 1e-12 at most.

    Args:
        generator: the source of randomness.
        population: how many there are to draw from; at least 0.
        probability: in (0, 1].
    """
    require_count("population", population, at_least=0)
    require_probability("probability", probability)
    count = int(generator.binomial(population, probability)) if population else 0
    return np.sort(distinct_indices(generator, population, count))


def distinct_indices(generator: np.random.Generator, population: int, count: int) -> Indices:
    """A uniformly random set of ``count`` distinct indices below ``population``, in any order.

    Sparse sets are drawn by rejection: the first ``count`` distinct values of an i.i.d. uniform
    sequence are a uniformly random set. Dense ones by a partial shuffle, O(population) = O(count).
    """
    if 4 * count >= population:
        return generator.permutation(population)[:count].astype(np.int64, copy=False)
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < count:
        more = generator.integers(population, size=count + count // 2 + 8, dtype=np.int64)
        sequence = np.concatenate([drawn, more])
        _, first = np.unique(sequence, return_index=True)
        drawn = sequence[np.sort(first)]
    return drawn[:count]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cohort:
    """The rows that one step uses, grouped into the units that are clipped.

    Under ULS a unit is a user with at most G of its examples; under ELS it is one example.

    Args:
        users: (rows,), the user of each row.
        examples: (rows,), the index of each row among its user's examples.
        offsets: (units + 1,), unit k is the rows ``offsets[k]:offsets[k + 1]``.
    """

    users: Indices
    examples: Indices
    offsets: Indices

    @property
    def units(self) -> int:
        """How many units were drawn; operator-only, like everything counted here."""
        return len(self.offsets) - 1

    def part(self, begin: int, end: int) -> Cohort:
        """Units ``begin:end`` as a cohort of their own."""
        first, last = self.offsets[begin], self.offsets[end]
        return Cohort(
            users=self.users[first:last],
            examples=self.examples[first:last],
            offsets=self.offsets[begin : end + 1] - first,
        )


class Sampler:
    """Draws one cohort per step, independently of all other steps and of what the data says.

    Args:
        sampling: how.
        counts: int64 (users,), examples of each training user, each at least 1.
        generator: of `secret_generator`.

    Attributes:
        sampling: what it draws by; a step's line in the ledger takes it from here, not from the
            plan, so that a sampler of another plan is noticed.
    """

    def __init__(self, sampling: Sampling, counts: Indices, generator: np.random.Generator) -> None:
        self.sampling = sampling
        self._generator = generator
        self._counts = counts
        self._ends = np.cumsum(np.minimum(counts, sampling.group_size))
        self._draws = sampling.draws(sampling.total_units(counts), generator)

    def draw(self) -> Cohort:
        """A fresh cohort; an empty one is a noise-only step and counts."""
        drawn = next(self._draws)
        return self._users(drawn) if self.sampling.by_user else self._examples(drawn)

    def _users(self, users: Indices) -> Cohort:
        """A unit is a user with at most G of its examples, drawn afresh at each step.

        Source: Charles et al. 2024, Algorithm 2 (``Sample D_u^t of size at most G``).
        """
        group = self.sampling.group_size
        picked = [
            np.sort(distinct_indices(self._generator, count, min(count, group)))
            for count in self._counts[users].tolist()
        ]
        sizes = np.array([len(rows) for rows in picked], dtype=np.int64)
        return Cohort(
            users=np.repeat(users, sizes),
            examples=np.concatenate(picked) if picked else np.empty(0, dtype=np.int64),
            offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        )

    def _examples(self, examples: Indices) -> Cohort:
        """Units of single examples; of each user the first G in the order of the store.

        Which G examples those are is decided once per user by `userdp.data.selection`; here a user
        has ``min(count, G)`` of them, ranks 0 up to that.
        Source: Charles et al. 2024, Algorithm 1 (``D_sub``).
        """
        users = np.searchsorted(self._ends, examples, side="right").astype(np.int64)
        starts = np.where(users > 0, self._ends[users - 1], 0)
        return Cohort(
            users=users,
            examples=examples - starts,
            offsets=self.sampling.unit_offsets(users),
        )
