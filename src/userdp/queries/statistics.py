"""How many users, how many examples, how many per user: each with pure user-level DP.

The mechanisms are those of OpenDP (extra ``queries``): discrete Laplace noise drawn exactly, and a
quantile by the exponential mechanism over public candidates. Their privacy maps are asked for the
ε that they cost, and it must not exceed what was charged.

A data set here is the list of examples per user: adding or removing a user adds or removes one
number, so OpenDP's symmetric distance between neighbours is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.errors import FailureError, UseError
from userdp.extras import library
from userdp.vocabulary import require_count, require_positive

_ROUNDING = 1 + 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistic:
    """What is asked.

    Args:
        name: "users", "examples" or a quantile of the examples per user, as "p50".
        quantile: in (0, 1), or None.
    """

    name: str
    quantile: float | None = None


def parse_statistic(name: str) -> Statistic:
    """A statistic by its name: ``users``, ``examples``, ``median`` or ``p1`` to ``p99``.

    >>> parse_statistic("median").quantile, parse_statistic("p90").quantile
    (0.5, 0.9)
    """
    if name in ("users", "examples"):
        return Statistic(name=name)
    if name == "median":
        return Statistic(name=name, quantile=0.5)
    if name[:1] == "p" and name[1:].isascii() and name[1:].isdigit() and 1 <= int(name[1:]) <= 99:
        return Statistic(name=name, quantile=int(name[1:]) / 100)
    raise UseError(
        f"no statistic is named {name!r}", hint="one of: users, examples, median, p1 to p99"
    )


def draw(
    statistic: Statistic, counts: NDArray[np.int64], *, epsilon: float, most_examples: int
) -> int:
    """One answer; see `mechanism`. ``counts`` is int64 (users,), examples of each."""
    return int(mechanism(statistic, epsilon=epsilon, most_examples=most_examples)(counts.tolist()))


def mechanism(statistic: Statistic, *, epsilon: float, most_examples: int) -> Any:
    """What draws answers from the list of examples per user.

    Guarantee: (``epsilon``, 0)-DP per user, add-or-remove; each call draws anew and costs anew.

    * users: their number plus discrete Laplace noise of scale 1/ε.
    * examples: the sum of min(n_u, ``most_examples``) plus noise of scale ``most_examples``/ε.
    * a quantile: among `candidates`, by the exponential mechanism.

    Args:
        statistic: what is asked.
        epsilon: finite, > 0.
        most_examples: a public bound on n_u, from 1 to 2**30; larger users count as so many.

    Source: Dwork and Roth 2014, Sections 3.3 and 3.4; the quantile: Smith 2011.
    """
    require_count("most_examples", most_examples, at_most=2**30)
    if statistic.quantile is not None:
        return quantile(candidates(most_examples), at=statistic.quantile, epsilon=epsilon)
    if statistic.name == "examples":
        return bounded_sum(0, most_examples, epsilon=epsilon)
    dp, space = _opendp()
    counted = space >> dp.t.then_count()
    return _within(lambda scale: counted >> dp.m.then_laplace(scale=scale), epsilon)


def quantile(grid: list[int], *, at: float, epsilon: float) -> Any:
    """What draws, from a list of one whole number per user, which number of a grid is its quantile.

    Guarantee: (``epsilon``, 0)-DP per user, add-or-remove; each call draws anew and costs anew.

    Args:
        grid: public candidates, rising.
        at: in (0, 1); 0.5 is the median.
        epsilon: finite, > 0.

    Source: Smith 2011, by the exponential mechanism; Dwork and Roth 2014, Section 3.4.
    """
    dp, space = _opendp()

    def build(scale: float) -> Any:
        return space >> dp.m.then_private_quantile(dp.max_divergence(), grid, alpha=at, scale=scale)

    return _within(build, epsilon)


def bounded_sum(least: int, most: int, *, epsilon: float) -> Any:
    """What draws noisy sums of one whole number per user, each clamped to [``least``, ``most``].

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
    grid = {most_examples, 1}
    power = 2
    while power <= most_examples:
        grid |= {power, power * 3 // 2}
        power *= 2
    return sorted(value for value in grid if value <= most_examples)


def _within(build: Any, epsilon: float) -> Any:
    """The mechanism of least noise whose own privacy map says at most ``epsilon``.

    ε falls as 1/scale in each of them, so that one probe tells the scale.
    """
    require_positive("epsilon", epsilon, at_most=700.0)
    scale = build(1.0).map(1) / epsilon
    for _ in range(8):
        built = build(scale)
        if built.map(1) <= epsilon:
            return built
        scale *= _ROUNDING
    raise FailureError(f"no noise scale was found that costs at most epsilon={epsilon}")


def _opendp() -> tuple[Any, Any]:
    """The library, and its space of lists of whole numbers, one of each user."""
    dp = library("opendp.prelude", extra="queries", what="a private statistic")
    dp.enable_features("contrib")
    return dp, (dp.vector_domain(dp.atom_domain(T=dp.i64)), dp.symmetric_distance())
