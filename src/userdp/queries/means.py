"""Means of a bounded number per user, under pure user-level DP.

A data set here is one number for each user, so that adding or removing a user adds or removes one
of them. Numbers are rounded to a public grid first, and sums are of integers: nothing is lost to
floating point, and the noise is drawn exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.claims.lineage import Lineage
from userdp.data.store import UserStore
from userdp.data.verify import require_intact
from userdp.errors import UseError
from userdp.queries.answers import Question, ask
from userdp.queries.ownership import require_one_owner
from userdp.queries.statistics import bounded_sum, mechanism, parse_statistic
from userdp.vocabulary import require_positive

GRID = 4096
"""Steps of the grid per unit."""

_SUM_PARTS, _COUNT_PARTS = 3, 2
"""How ε is shared between a sum and the count: a mean near a quarter of the bound from its middle,
which is usual for losses, has its least error near this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleasedMean:
    """A mean that may be published.

    Args:
        value: in [0, bound].
        standard_error: of the noise only, to first order, computed from released numbers.
    """

    value: float
    standard_error: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleasedMeans:
    """Several means over the same users.

    Args:
        means: by name.
        users: the noisy number of users.
        epsilon: what all of it cost: (ε, 0)-DP per user, add-or-remove.
        query_ids: of its lines in the store ledger.
    """

    means: Mapping[str, ReleasedMean]
    users: int
    epsilon: float
    query_ids: tuple[str, ...]


def release_means(
    store: UserStore,
    values: Mapping[str, NDArray[np.float64]],
    *,
    bound: float,
    epsilon: float,
    subject: str,
    of: Lineage | None = None,
) -> ReleasedMeans:
    """For each name the mean of its numbers, clamped to [0, ``bound``], at ``epsilon`` in all.

    Guarantee: (``epsilon``, 0)-DP per user, add-or-remove, if each number is a function of one
    user's data and of public or already released values, as many as users in each array: noisy
    sums about the middle of the range and one noisy count, added by basic composition. Every part
    is a line in the store's ledger, on the disk before any is drawn; their answers follow there.

    Args:
        store: whose users are charged.
        values: by name, float64 (users,); one that is not finite counts as ``bound``.
        bound: a public constant; > 0, at most 1e6.
        epsilon: of all together; finite, > 0, at most 700.
        subject: what the numbers are; public, for the ledger.
        of: what the models descend from that the numbers are a function of.

    Raises:
        UseError: bad arguments, or records of the store have several owners.

    Source: Dwork and Roth 2014, Sections 3.3 and 3.5.1.
    """
    require_positive("epsilon", epsilon, at_most=700.0)
    require_positive("bound", bound, at_most=1e6)
    if not values or len({len(numbers) for numbers in values.values()}) != 1:
        raise UseError("means over the same users need as many numbers under each name")
    require_one_owner(store.meta)
    require_intact(store)
    part = epsilon / (_SUM_PARTS * len(values) + _COUNT_PARTS)
    shares = {"sum_epsilon": _SUM_PARTS * part, "count_epsilon": _COUNT_PARTS * part}
    questions = [
        sum_question(f"{name} {subject}", numbers, bound=bound, epsilon=shares["sum_epsilon"])
        for name, numbers in values.items()
    ]
    everybody = len(next(iter(values.values())))
    questions.append(count_question(subject, everybody, epsilon=shares["count_epsilon"]))
    (*sums, users), ids = ask(store, questions, of=of)
    return ReleasedMeans(
        means={
            name: mean_of(total, users, bound=bound, **shares)
            for name, total in zip(values, sums, strict=True)
        },
        users=max(0, users),
        epsilon=epsilon,
        query_ids=ids,
    )


def sum_question(
    name: str, numbers: NDArray[np.float64], *, bound: float, epsilon: float
) -> Question:
    """The noisy sum of numbers clamped to [0, ``bound``], about the middle of that range.

    Sensitivity: a user adds at most half the bound, either way.
    """
    top, middle = _range(bound)
    return Question(
        name=f"sum of {name}",
        draw=bounded_sum(-middle, top - middle, epsilon=epsilon),
        held=[unit - middle for unit in to_grid(numbers, top)],
        epsilon=epsilon,
    )


def count_question(subject: str, users: int, *, epsilon: float) -> Question:
    """The noisy number of users."""
    draw = mechanism(parse_statistic("users"), epsilon=epsilon, most_examples=1)
    return Question(name=f"users of {subject}", draw=draw, held=[1] * users, epsilon=epsilon)


def to_grid(numbers: NDArray[np.float64], top: int) -> list[int]:
    """Numbers as whole steps of the grid in [0, ``top``]; one that is not finite is ``top``.

    >>> to_grid(np.array([0.0, 1.0, 1e9, float("nan"), -1.0]), 8192)
    [0, 4096, 8192, 8192, 0]
    """
    steps = np.clip(np.where(np.isfinite(numbers), numbers, np.inf) * GRID, 0, top)
    return [int(step) for step in np.rint(steps)]


def mean_of(
    total: int, users: int, *, bound: float, sum_epsilon: float, count_epsilon: float
) -> ReleasedMean:
    """Post-processing of the answers to a `sum_question` and a `count_question`."""
    top, middle = _range(bound)
    sum_std = math.sqrt(2.0) * max(middle, top - middle) / sum_epsilon
    count_std = math.sqrt(2.0) / count_epsilon
    people = max(1, users)
    off = min(max(total / people, -middle), top - middle)
    error = math.hypot(sum_std, off * count_std) / people
    return ReleasedMean(value=(middle + off) / GRID, standard_error=min(error, top) / GRID)


def _range(bound: float) -> tuple[int, int]:
    """The steps of the grid up to ``bound``, and half of them."""
    top = max(1, math.floor(bound * GRID))
    return top, top // 2
