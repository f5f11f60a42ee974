"""Invariant 2: each unit joins by the plan's probability, and no cohort comes from a known seed.

The plan's sampling draws from made-up units, as many as it takes for cohorts to be neither empty
nor slow. What is counted: who was drawn how often, all draws together, and how often neighbours
were drawn together. Whether cohorts are secret is asked with every default generator seeded with 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from userdp.errors import UseError
from userdp.sampling import Sampling
from userdp.sampling.cohort import Cohort
from userdp.sampling.fixed_size import FixedSize
from userdp.sampling.truncated import Truncated
from userdp.training.checks import surprise
from userdp.training.checks.check import Check, Measured
from userdp.training.checks.public_seeds import seeded
from userdp.training.checks.subject import Subject

_WANTED = 24
"""Units that a made-up cohort should have, where the plan leaves that open."""
_MOST_UNITS = 2_000_000
_MOST_DRAWN, _MOST_DRAWS, _FEWEST_DRAWS = 400_000, 400, 24
_COMPARED = 8


def _measure(subject: Subject) -> Iterator[Measured]:
    sampling = subject.sampling
    if not sampling.covered:  # nothing is claimed of it
        return
    counts = np.ones(_population(sampling), dtype=np.int64)
    try:
        sampling.require_store(counts)
    except UseError:  # its public bounds leave no room for a made-up population
        return
    total = sampling.total_units(counts)
    chance = sampling.chance(total)
    size = max(1.0, chance * total)
    draws = int(min(_MOST_DRAWS, max(_FEWEST_DRAWS, _MOST_DRAWN / size)))
    sampler = sampling.draws(total, subject.coins())
    times, together = np.zeros(total, dtype=np.int64), 0
    for _ in range(draws):
        drawn = np.zeros(total + total % 2, dtype=bool)
        drawn[next(sampler)] = True
        times += drawn[:total]
        together += int((drawn[0::2] & drawn[1::2]).sum())
    pairs = draws * (total // 2)
    both = _both(sampling, chance, total)
    often = max(
        surprise.of_count(float(count), draws, chance) for count in (times.max(), times.min())
    )
    for what, nats in {
        "the number of all that were drawn": surprise.of_count(
            float(times.sum()), draws * total, chance
        ),
        # The most surprising of so many: each of them is as likely to be.
        "how often a single unit was drawn": often - float(np.log(total)),
        "how often neighbours were drawn together": surprise.of_count(together, pairs, both),
    }.items():
        yield Measured(
            what=f"how surprising {what} is in {draws} draws from {total:,} made-up units, in nats",
            value=max(0.0, nats),
            bound=surprise.MOST,
        )
    yield from _secret(subject, counts)


def _population(sampling: Sampling) -> int:
    """How many made-up units, within the public bounds that the sampling's price is for."""
    if isinstance(sampling, FixedSize):
        return min(_MOST_UNITS, sampling.least_population + sampling.items)
    probability = sampling.chance(1)
    wanted = int(min(_MOST_UNITS, max(2 * _WANTED, _WANTED / probability)))
    if isinstance(sampling, Truncated):
        # Cut draws would be fewer than by their probability: far below the cap none is.
        most = min(sampling.most_population - sampling.items, int(sampling.cap / probability / 4))
        return max(1, min(wanted, most))
    return wanted


def _both(sampling: Sampling, chance: float, total: int) -> float:
    if isinstance(sampling, FixedSize) and total > 1:
        return chance * max(0.0, chance * total - 1) / (total - 1)
    return chance**2


def _secret(subject: Subject, counts: NDArray[np.int64]) -> Iterator[Measured]:
    """Whether two samplers that are made after equal public seeds draw different cohorts."""
    sampling, cohorts = subject.sampling, list[list[Cohort]]()
    for _ in range(2):
        with seeded():
            sampler = sampling.sampler(counts, subject.coins())
            cohorts.append([sampler.draw() for _ in range(_COMPARED)])
    one, other = (np.concatenate([c.users for c in half]) for half in cohorts)
    chance = sampling.chance(sampling.total_units(counts))
    if not _COMPARED * len(counts) * min(chance, 1 - chance) > 100:
        return  # so few coins, or so sure ones, that two honest samplers may agree
    everybodys = subject.world.all_gather_object(one)
    yield Measured(
        what="processes that drew other cohorts than process 0",
        value=float(sum(not np.array_equal(drawn, everybodys[0]) for drawn in everybodys)),
        bound=0,
    )
    yield Measured(
        what="whether a sampler repeats the cohorts of another, after equal public seeds",
        value=float(np.array_equal(one, other)),
        bound=0,
    )


CHECK = Check(
    name="cohorts",
    invariant=2,
    claim="cohorts are drawn by the plan's probabilities, from secret seeds",
    measure=_measure,
)
