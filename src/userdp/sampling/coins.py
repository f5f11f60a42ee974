"""Secret generators, and exact draws of indices in time proportional to what is drawn."""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from userdp.core.vocabulary import require_count, require_probability

Indices = NDArray[np.int64]

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

    Guarantee: exactly the distribution of independent coins: the number of heads is binomial, and
    given their number every set of indices is equally likely. Cost O(drawn), never O(population).

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
