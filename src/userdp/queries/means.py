"""Means of a bounded number per user, under pure user-level DP.

A data set here is one number for each user, so that adding or removing a user adds or removes one
of them. Numbers are rounded to a public grid first, and sums are of integers: nothing is lost to
floating point, and the noise is drawn exactly.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.claims.lineage import Lineage
from userdp.data.store import UserStore
from userdp.errors import UseError
from userdp.ledger import StoreLedger
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
    part = epsilon / (_SUM_PARTS * len(values) + _COUNT_PARTS)
    top = max(1, math.floor(bound * GRID))
    middle = top // 2
    plans: list[tuple[str, Any, list[int], float]] = [
        (
            f"sum of {name} {subject}",
            bounded_sum(-middle, top - middle, epsilon=_SUM_PARTS * part),
            [unit - middle for unit in to_grid(numbers, top)],
            _SUM_PARTS * part,
        )
        for name, numbers in values.items()
    ]
    everybody = [1] * len(next(iter(values.values())))
    count = mechanism(parse_statistic("users"), epsilon=_COUNT_PARTS * part, most_examples=1)
    plans.append((f"users of {subject}", count, everybody, _COUNT_PARTS * part))
    ledger = StoreLedger(store.path)
    ids = [f"query-{secrets.token_hex(8)}" for _ in plans]
    for query_id, (name, _, _, share) in zip(ids, plans, strict=True):
        ledger.query(
            query_id,
            name=name,
            pure_epsilon=share,
            base=of.plain if of else None,
            state=store.meta.state.id,
        )
    answers = []
    for query_id, (_, draw, held, _) in zip(ids, plans, strict=True):
        answer = int(draw(held))
        ledger.answer(query_id, value=answer)
        answers.append(answer)
    *sums, users = answers
    scale = math.sqrt(2.0) * max(middle, top - middle) / (_SUM_PARTS * part)
    return ReleasedMeans(
        means={
            name: _mean(
                total, users, middle=middle, top=top, sum_std=scale,
                count_std=math.sqrt(2.0) / (_COUNT_PARTS * part),
            )
            for name, total in zip(values, sums, strict=True)
        },
        users=max(0, users),
        epsilon=epsilon,
        query_ids=tuple(ids),
    )  # fmt: skip


def to_grid(numbers: NDArray[np.float64], top: int) -> list[int]:
    """Numbers as whole steps of the grid in [0, ``top``]; one that is not finite is ``top``.

    >>> to_grid(np.array([0.0, 1.0, 1e9, float("nan"), -1.0]), 8192)
    [0, 4096, 8192, 8192, 0]
    """
    steps = np.clip(np.where(np.isfinite(numbers), numbers, np.inf) * GRID, 0, top)
    return [int(step) for step in np.rint(steps)]


def _mean(
    total: int, users: int, *, middle: int, top: int, sum_std: float, count_std: float
) -> ReleasedMean:
    """Post-processing of a noisy sum about ``middle`` and a noisy count."""
    people = max(1, users)
    off = min(max(total / people, -middle), top - middle)
    error = math.hypot(sum_std, off * count_std) / people
    return ReleasedMean(value=(middle + off) / GRID, standard_error=min(error, top) / GRID)
