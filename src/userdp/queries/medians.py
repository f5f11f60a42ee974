"""Medians of a positive number per user, under pure user-level DP.

The exponential mechanism of `userdp.queries.statistics` chooses whole numbers, so a number x > 0
stands on a logarithmic grid, at the step nearest to `STEPS_PER_DOUBLING` · log2(x): a released
median is within 4.5% of the grid's true choice, whatever its unit.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.claims.lineage import Lineage
from userdp.data.store import UserStore
from userdp.data.verify import require_intact
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.queries.ownership import require_one_owner
from userdp.queries.statistics import quantile
from userdp.vocabulary import require_positive

STEPS_PER_DOUBLING = 8
DOUBLINGS = 20
"""The grid goes from 2**-20 to 2**20; what lies beyond stands at its end."""
_LAST = STEPS_PER_DOUBLING * DOUBLINGS


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleasedMedians:
    """Medians that may be published.

    Args:
        medians: by name.
        epsilon: what all of them cost: (ε, 0)-DP per user, add-or-remove.
        query_id: of their line in the store ledger.
    """

    medians: Mapping[str, float]
    epsilon: float
    query_id: str


def charge_medians(store: UserStore, *, epsilon: float, subject: str, of: Lineage) -> str:
    """Charge medians that are yet to be computed: the id of the line, which is on the disk.

    Args:
        store: whose people are asked.
        epsilon: of all of them together.
        subject: what is asked; public.
        of: what the model descends from that the numbers are a function of.

    Raises:
        UseError: ``epsilon`` is out of range, or records of the store have several owners.
    """
    require_positive("epsilon", epsilon, at_most=700.0)
    require_one_owner(store.meta)
    require_intact(store)
    query_id = f"query-{secrets.token_hex(8)}"
    StoreLedger(store.path).query(
        query_id, name=subject, pure_epsilon=epsilon, base=of.plain, state=store.meta.state.id
    )
    return query_id


def draw_medians(
    values: Mapping[str, NDArray[np.float64]], *, epsilon: float, query_id: str
) -> ReleasedMedians:
    """The median of the numbers under each name, at ``epsilon`` in all.

    Guarantee: (``epsilon``, 0)-DP per user, add-or-remove, if each array holds at most one number
    of each user, a function of that user's data, of public values and of coins of its own. Each
    name takes an equal share, and basic composition adds them.

    Args:
        values: by name, float64 (users,); one that is not finite counts as the largest.
        epsilon: as charged by `charge_medians` under ``query_id``.
        query_id: see there.

    Source: Smith 2011; Dwork and Roth 2014, Sections 3.4 and 3.5.1.
    """
    if not values:
        raise UseError("no median is named")
    share = epsilon / len(values)
    choose = quantile(list(range(-_LAST, _LAST + 1)), at=0.5, epsilon=share)
    medians = {
        name: 2.0 ** (int(choose(to_steps(numbers))) / STEPS_PER_DOUBLING)
        for name, numbers in values.items()
    }
    return ReleasedMedians(medians=medians, epsilon=epsilon, query_id=query_id)


def rank_error(*, epsilon: float, names: int) -> float:
    """How far from the median, in users, each of ``names`` medians stands with 95% probability.

    A score is half the difference of the numbers of users above and below; one user moves it by
    half, so that the noise on it is exponential of scale 1/ε for each name. A grid point whose
    score is larger than the least by ln(n/0.05)/ε wins with probability 0.05/n at most, for each of
    the n points.

    Args:
        epsilon: of all of them together.
        names: how many medians.

    Source: Dwork and Roth 2014, Theorem 3.11.
    """
    return math.log((2 * _LAST + 1) / 0.05) * names / epsilon


def to_steps(numbers: NDArray[np.float64]) -> list[int]:
    """Numbers as steps of the logarithmic grid.

    >>> to_steps(np.array([1.0, 2.0, 0.5, 0.0, -3.0, float("inf"), float("nan")]))
    [0, 8, -8, -160, -160, 160, 160]
    """
    positive = np.where(np.isnan(numbers), np.inf, np.maximum(numbers, 0.0))
    with np.errstate(divide="ignore"):
        steps = np.clip(STEPS_PER_DOUBLING * np.log2(positive), -_LAST, _LAST)
    return [int(step) for step in np.rint(steps)]
