"""Effective noise of User-wise DP-SGD and of Asi & Liu's filter (Chua et al. 2024, Algorithm 3).

Effective noise is the standard deviation per coordinate of the noise in the averaged gradient,
over C. That of the filter grows with τ, the distance within which most users' gradients must lie.

The published constants are taken on trust: the series says "published, unproven". The third series
has the constants that the page ``docs/results/asi-liu.md`` derives. Nothing here trains, and userdp
claims no ε by either.

N = 18,194 is Enron's number of users in Table 1 (240,173 records, 13.2 a user, so 18,195; made
even). The paper's text gives neither T nor δ nor the cohort of these figures: T = 1000 and δ = 1e-6
are ours. In no formula does the number of records k of a user occur; it is let in by the cohort of
User-wise DP-SGD, n = 1024/k, which keeps the records of a step at the batch size of Appendix C.4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
from scipy import stats

from papers.drawing import Figure, Row, draw_lines
from papers.plans import least_noise

USERS, STEPS, DELTA, RECORDS = 18_194, 1000, 1e-6, 1024
"""N; T; δ; records of a step of User-wise DP-SGD."""
PUBLISHED, DERIVED = "Asi & Liu (published, unproven)", "Asi & Liu (constants derived here)"
_RATIOS = tuple(2.0**power for power in range(-8, 2))


def user_wise_noise(
    epsilon: float,
    *,
    cohort_size: int,
    users: int = USERS,
    steps: int = STEPS,
    delta: float = DELTA,
) -> float:
    """σ/n, over C: the noise of Algorithm 2, line 11, with line 2's σ by Poisson sampling n/N.

    As in the paper, adjacency is add-or-remove here, and replacement for the filter, where N is
    public. With a full batch, replacement would double this noise.
    """
    return least_noise(cohort_size / users, steps, epsilon, delta) / cohort_size


def published_noise(
    epsilon: float, *, users: int = USERS, steps: int = STEPS, delta: float = DELTA
) -> float:
    """√(8 log(e^ε T/δ)) σ/N, over τ: the noise of Algorithm 3, line 14. Published, unproven.

    Line 2's σ is for (ε/2, δ/2), a full batch and sensitivity 1.
    """
    return (
        math.sqrt(8 * (epsilon + math.log(steps / delta)))
        * _half_budget(epsilon, steps, delta)
        / users
    )


def derived_noise(
    epsilon: float, *, users: int = USERS, steps: int = STEPS, delta: float = DELTA
) -> float:
    """The noise, over τ, for which ``docs/results/asi-liu.md`` derives (ε, δ) under replacement.

    Infinite where N is too small: AboveThreshold's noise may then pass a step whose users are not
    concentrated. δ is split in halves for the Gaussian steps, a quarter for the filter's coins, a
    quarter for such a pass (there: "Theorem").

    Args:
        epsilon: half for AboveThreshold, half for the Gaussian steps.
        users: N, public.
        steps: T.
        delta: in (0, 1).
    """
    core = certain_core(epsilon, users=users, steps=steps, delta=delta)
    if core < 2 * users / 3:
        return math.inf
    flips = squared_flips(core, users=users, steps=steps, delta=delta / 4)
    diameter = 4 if users % 2 == 0 else 6
    return diameter * math.sqrt(flips / steps) / (core + 1) * _half_budget(epsilon, steps, delta)


def certain_core(epsilon: float, *, users: int, steps: int, delta: float) -> int:
    """m: so many users stay included whoever is replaced, but for δ/4 (there: Lemma 2, step 4)."""
    half = epsilon / 2
    missed = delta / 4 / (1 + math.exp(epsilon))
    slack = 4 / half * math.log(1 / missed) + 8 / half * math.log(steps / missed)
    return math.ceil(0.8 * users - slack - 2)


def squared_flips(core: int, *, users: int, steps: int, delta: float) -> float:
    """V: the T-fold sum of (1 + F)² is at most V but for ``delta``; F ~ Bin(N - 1 - m, 6/N).

    F counts users other than the replaced one whose inclusion changes. Half of ``delta`` is for
    any F above a cap, half for Chernoff's bound of the capped sum; each exponent gives a valid V.
    """
    law = stats.binom(users - 1 - core, 6 / users)
    cap = int(law.isf(delta / 2 / steps))
    log_mass = law.logpmf(np.arange(cap + 1))
    squares = (1.0 + np.arange(cap + 1)) ** 2
    log_delta = math.log(2 / delta)
    return min(
        float((steps * np.logaddexp.reduce(log_mass + s * squares) + log_delta) / s)
        for s in np.geomspace(1e-4, 1, 200)
    )


@lru_cache(maxsize=256)
def _half_budget(epsilon: float, steps: int, delta: float) -> float:
    """Algorithm 3, line 2: PrivAccounting(ε/2, δ/2, N, N, T)."""
    return least_noise(1.0, steps, epsilon / 2, delta / 2)


def rows(
    *,
    epsilons: Sequence[float],
    group_sizes: Sequence[int] = (2, 5, 10),
    ratios: Sequence[float] = _RATIOS,
) -> list[Row]:
    """A row for each ε, k, τ/C and series; ``crossing``: the τ/C below which it is less noisy."""
    rows: list[Row] = []
    for epsilon in epsilons:
        for group in group_sizes:
            users = user_wise_noise(epsilon, cohort_size=round(RECORDS / group))
            for name, noise in (
                (PUBLISHED, published_noise(epsilon)),
                (DERIVED, derived_noise(epsilon)),
                ("User-wise DP-SGD", None),
            ):
                rows += [
                    {
                        "epsilon": epsilon,
                        "group_size": group,
                        "tau_over_clip": ratio,
                        "series": name,
                        "noise": users if noise is None else noise * ratio,
                        "crossing": None if noise is None else users / noise,
                    }
                    for ratio in ratios
                ]
    return rows


_draw = partial(
    draw_lines,
    panel=lambda row: f"ε = {row['epsilon']:g}, k = {row['group_size']}",
    x="tau_over_clip",
    y="noise",
    y_label="effective noise over C",
    x_label="τ / C",
    columns=3,
)
_TITLE = "User-wise DP-SGD and Asi & Liu, Chua et al. 2024, Figure"

FIGURES = {
    "chua-figure-3": Figure(
        rows=partial(rows, epsilons=(3.0,)), draw=partial(_draw, title=f"{_TITLE} 3")
    ),
    # at the other ε of the paper's Table 6
    "chua-figure-7": Figure(
        rows=partial(rows, epsilons=(0.5, 1.0, 8.0)), draw=partial(_draw, title=f"{_TITLE} 7")
    ),
}
