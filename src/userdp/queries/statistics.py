"""How many users, how many examples, how many per user: each with pure user-level DP.

The mechanisms are those of OpenDP (extra ``queries``): discrete Laplace noise drawn exactly, and a
quantile by the exponential mechanism over public candidates. Their privacy maps are asked for the
ε that they cost, and it must not exceed what was charged.

A data set here is a list of one whole number per user: adding or removing a user adds or removes
one number, so OpenDP's symmetric distance between neighbours is 1. Several questions together cost
the sum of their ε (basic composition), and all of them are charged, on the disk, before one is
answered.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.claims.lineage import Lineage
from userdp.core.environment import library
from userdp.core.errors import UseError
from userdp.core.vocabulary import Adjacency, require_count, require_positive
from userdp.data.splits import Split
from userdp.data.store_meta import StoreMeta
from userdp.data.user_store import UserStore, require_intact
from userdp.ledger import StoreLedger
from userdp.ledger.charged_parts import Query
from userdp.ledger.lines import Answer, Charge
from userdp.plans.provenance import Release

DEFAULT_STATISTICS = ("users", "examples", "median")
STEPS_PER_DOUBLING = 8
"""Of the logarithmic grid on which medians of positive numbers stand: within 4.5% of the truth."""
_LAST_STEP = STEPS_PER_DOUBLING * 20
"""The grid goes from 2**-20 to 2**20; larger and smaller numbers stand at its ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One number that is asked of the users of a store.

    Args:
        name: of the statistic; public, for the ledger.
        draw: a mechanism: from a list of one whole number per user, a noisy answer at ``epsilon``.
        held: those numbers.
        epsilon: the price, (ε, 0)-DP per user, add-or-remove.
    """

    name: str
    draw: Any
    held: list[int]
    epsilon: float


def release(
    store: UserStore,
    *,
    epsilon: float,
    names: Sequence[str] = DEFAULT_STATISTICS,
    most_examples: int = 4096,
) -> list[Release]:
    """Noisy statistics of the training split, at ``epsilon`` in all.

    Guarantee: all answers together are (``epsilon``, 0)-DP per user, add-or-remove: each takes an
    equal share. See `ask` for the ledger, where `userdp plan` finds the answers.

    Args:
        store: whose training users are counted; each user is in one row.
        epsilon: of all together; finite, > 0, at most 700.
        names: as for `mechanism`.
        most_examples: a public bound on a user's examples; a constant, not taken from the data.

    Raises:
        UseError: bad arguments, or records of the store have several owners.
    """
    require_positive("epsilon", epsilon, at_most=700.0)
    if not names:
        raise UseError("no statistic is named", hint=_NAMES)
    held, share = store.split(Split.TRAIN).counts.tolist(), epsilon / len(names)
    questions = []
    for name in names:
        draw = mechanism(name, epsilon=share, most_examples=most_examples)
        questions.append(Question(name=name, draw=draw, held=held, epsilon=share))
    answers, ids = ask(store, questions)
    return [
        Release(name=name, value=value, epsilon=share, query_id=query_id)
        for name, value, query_id in zip(names, answers, ids, strict=True)
    ]


def ask(
    store: UserStore, questions: Sequence[Question], *, of: Lineage | None = None
) -> tuple[list[int], tuple[str, ...]]:
    """The answers, and the ids of their lines in the store's ledger.

    Guarantee: (Σ epsilon, 0)-DP per user by basic composition. A crash between charges and answers
    leaves all charged. ``of`` is the lineage of the models that the numbers are a function of.
    """
    ids = charge(store, [(one.name, one.epsilon) for one in questions], of=of)
    ledger, answers = StoreLedger(store.path), []
    for query_id, one in zip(ids, questions, strict=True):
        answers.append(int(one.draw(one.held)))
        ledger.append(Answer(run_id=query_id, value=answers[-1]))
    return answers, ids


def charge(
    store: UserStore, prices: Sequence[tuple[str, float]], *, of: Lineage | None = None
) -> tuple[str, ...]:
    """Charge answers that are yet to be computed, by name and ε: the ids of the ledger's lines.

    Raises:
        UseError: a damaged store, a spent budget, or records of the store have several owners.
    """
    require_one_owner(store.meta)
    require_intact(store)
    ledger, base = StoreLedger(store.path), of.plain if of else None
    ids = tuple(f"query-{secrets.token_hex(8)}" for _ in prices)
    asked = (
        Query(id=query_id, name=name, pure_epsilon=epsilon)
        for query_id, (name, epsilon) in zip(ids, prices, strict=True)
    )
    ledger.append(*(Charge(pays_for=one, base=base, state=store.meta.state.id) for one in asked))
    return ids


def require_one_owner(meta: StoreMeta) -> None:
    """`UseError` if a record of the store may count for several users: no price per user holds."""
    adjacency = meta.ownership["adjacency"]
    if adjacency != Adjacency.ADD_OR_REMOVE:
        raise UseError(
            "this store's records have several owners, and its claims stand under "
            f"{adjacency} adjacency, not under add-or-remove: the numbers of one user say "
            "something of others there",
            hint="prepare a store without --records-per-user",
        )


def mechanism(name: str, *, epsilon: float, most_examples: int) -> Any:
    """The mechanism that draws a named statistic from the list of examples per user.

    Guarantee: (``epsilon``, 0)-DP per user, add-or-remove; each call draws anew and costs anew.

    Args:
        name: ``users``, their number plus discrete Laplace noise of scale 1/ε; ``examples``, the
            sum of min(n_u, ``most_examples``) plus noise of scale ``most_examples``/ε; ``median``
            or ``p1`` to ``p99``, a quantile of n_u among `candidates`, by the exponential
            mechanism.
        epsilon: finite, > 0.
        most_examples: a public bound on n_u, from 1 to 2**30; larger users count as so many.

    Source: Dwork and Roth 2014, Sections 3.3 and 3.4; the quantile: Smith 2011.
    """
    require_count("most_examples", most_examples, at_most=2**30)
    if name == "users":  # each training user has an example at least
        return bounded_sum(0, 1, epsilon=epsilon)
    if name == "examples":
        return bounded_sum(0, most_examples, epsilon=epsilon)
    levels = {"median": 0.5, **{f"p{percent}": percent / 100 for percent in range(1, 100)}}
    if name not in levels:
        raise UseError(f"no statistic is named {name!r}", hint=_NAMES)
    return quantile(candidates(most_examples), at=levels[name], epsilon=epsilon)


def quantile(grid: list[int], *, at: float, epsilon: float) -> Any:
    """A mechanism that draws, from one whole number per user, which number of a grid is a quantile.

    Guarantee: (``epsilon``, 0)-DP per user, add-or-remove; each call draws anew and costs anew.

    Args:
        grid: public candidates, rising.
        at: in (0, 1); 0.5 is the median.
        epsilon: finite, > 0.

    Source: Smith 2011, by the exponential mechanism; Dwork and Roth 2014, Section 3.4.
    """
    dp, space = _opendp()
    make, divergence = dp.m.then_private_quantile, dp.max_divergence()
    return _within(lambda scale: space >> make(divergence, grid, alpha=at, scale=scale), epsilon)


def bounded_sum(least: int, most: int, *, epsilon: float) -> Any:
    """A mechanism that draws noisy sums of one whole number per user, clamped to [least, most].

    Guarantee: (``epsilon``, 0)-DP per user, add-or-remove, by discrete Laplace noise of scale
    max(|least|, |most|)/ε; each call draws anew and costs anew.

    Source: Dwork and Roth 2014, Section 3.3.
    """
    if not -(2**40) <= least < most <= 2**40:
        raise UseError(f"a sum needs bounds with least < most, got {least!r} and {most!r}")
    dp, space = _opendp()
    clamped = space >> dp.t.then_clamp((least, most)) >> dp.t.then_sum()
    return _within(lambda scale: clamped >> dp.m.then_laplace(scale=scale), epsilon)


def candidates(most_examples: int) -> list[int]:
    """Public answers to a quantile: powers of two and one between each, up to a bound.

    >>> candidates(20)
    [1, 2, 3, 4, 6, 8, 12, 16, 20]
    """
    powers = [2**exponent for exponent in range(1, 31)]
    grid = {1, most_examples, *powers, *(power * 3 // 2 for power in powers)}
    return sorted(value for value in grid if value <= most_examples)


def draw_medians(values: Mapping[str, NDArray[np.float64]], *, epsilon: float) -> dict[str, float]:
    """The median of the positive numbers under each name, at ``epsilon`` in all.

    Guarantee: (``epsilon``, 0)-DP per user, add-or-remove, if each array holds at most one number
    of each user, a function of that user's data, of public values and of coins of its own. Each
    name takes an equal share, and basic composition adds them. Nothing is charged here: see
    `charge`, which goes before the numbers are measured.

    Args:
        values: by name, float64 (users,); one that is not finite counts as the largest.
        epsilon: as charged.

    Source: Smith 2011; Dwork and Roth 2014, Sections 3.4 and 3.5.1.
    """
    grid = list(range(-_LAST_STEP, _LAST_STEP + 1))
    choose = quantile(grid, at=0.5, epsilon=epsilon / len(values))
    return {
        name: 2.0 ** (int(choose(to_steps(numbers))) / STEPS_PER_DOUBLING)
        for name, numbers in values.items()
    }


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
    return math.log((2 * _LAST_STEP + 1) / 0.05) * names / epsilon


def to_steps(numbers: NDArray[np.float64]) -> list[int]:
    """Numbers as steps of the logarithmic grid: the nearest to `STEPS_PER_DOUBLING` · log2(x).

    >>> to_steps(np.array([1.0, 2.0, 0.5, 0.0, -3.0, float("inf"), float("nan")]))
    [0, 8, -8, -160, -160, 160, 160]
    """
    positive = np.where(np.isnan(numbers), np.inf, np.maximum(numbers, 0.0))
    with np.errstate(divide="ignore"):
        steps = np.clip(STEPS_PER_DOUBLING * np.log2(positive), -_LAST_STEP, _LAST_STEP)
    return [int(step) for step in np.rint(steps)]


def _within(build: Any, epsilon: float) -> Any:
    """The mechanism of least noise whose own privacy map says at most ``epsilon``."""
    require_positive("epsilon", epsilon, at_most=700.0)
    return _opendp()[0].binary_search_chain(build, 1, epsilon)


def _opendp() -> tuple[Any, Any]:
    """The library, and its space of lists of whole numbers, one of each user."""
    dp = library("opendp.prelude", extra="queries", what="a private statistic")
    dp.enable_features("contrib")
    return dp, (dp.vector_domain(dp.atom_domain(T=dp.i64)), dp.symmetric_distance())


_NAMES = "one of: users, examples, median, p1 to p99"
