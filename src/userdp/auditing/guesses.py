"""From canaries' scores to guesses: how many and on which side, fixed before coins are seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from userdp.auditing.bounds import one_run_epsilon, one_shot_epsilon

# (part guessed "in", part guessed "out"): a few sharp guesses or many vague ones. A canary that a
# step drew stands out; one that no step drew does not, hence the row without guesses of "out".
_PARTS = ((0.5, 0.5), (0.25, 0.25), (0.125, 0.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Guessed:
    """One way of guessing.

    Args:
        score: which score ordered the canaries.
        guesses: r.
        correct: v.
        epsilon_lower: refuted at the confidence level shared among all ways.
    """

    score: str
    guesses: int
    correct: int
    epsilon_lower: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CanaryBound:
    """What canaries prove. Operator-only where real users train beside them.

    Args:
        epsilon_lower: holds with ``confidence``, whichever way of guessing it came from.
        most_detectable: the bound if every guess were right: the largest ε this could prove.
        confidence: of ``epsilon_lower``.
        ways: all ways of guessing that were tried.
        estimates: Andrew et al.'s estimate, by score; no confidence level. None where too few
            canaries have a score.
    """

    epsilon_lower: float
    most_detectable: float
    confidence: float
    ways: tuple[Guessed, ...]
    estimates: dict[str, float | None]


def canary_bound(
    scores: Mapping[str, NDArray[np.float64]],
    included: NDArray[np.bool_],
    *,
    sums: Mapping[str, NDArray[np.float64]],
    delta: float,
    confidence: float = 0.95,
) -> CanaryBound:
    """The best lower bound over a fixed list of ways of guessing, at one confidence for all.

    Guarantee: ``epsilon_lower`` exceeds the mechanism's ε with probability at most
    ``1 - confidence``: the level is divided by the number of ways (a union bound). Scores must not
    have been made with the coins.

    Args:
        scores: by name, float64 (canaries,); a higher score means: more likely in. Nothing is
            guessed of a canary whose score is NaN, which must depend on neither coins nor outputs:
            the theorem takes the number of guesses for fixed.
        included: the coins.
        sums: scores that are sums over the steps, so that Gaussians fit them: for the estimates.
        delta: of the claim.
        confidence: of the bound.
    """
    total = len(included)
    asked = {name: np.flatnonzero(~np.isnan(values)) for name, values in scores.items()}
    plan = [
        (name, int(len(who) * top), int(len(who) * bottom))
        for name, who in asked.items()
        for top, bottom in _PARTS
    ]
    plan = [way for way in plan if way[1] + way[2] > 0]
    each = 1 - (1 - confidence) / max(1, len(plan))
    ways, most = [], 0.0
    for name, top, bottom in plan:
        who = asked[name]
        order = who[np.argsort(-scores[name][who], kind="stable")]
        correct = int(included[order[:top]].sum())
        correct += int((~included[order[len(order) - bottom :]]).sum()) if bottom else 0
        refuted = partial(
            one_run_epsilon, canaries=total, guesses=top + bottom, delta=delta, confidence=each
        )
        ways.append(
            Guessed(
                score=name,
                guesses=top + bottom,
                correct=correct,
                epsilon_lower=refuted(correct=correct),
            )
        )
        most = max(most, refuted(correct=top + bottom))
    return CanaryBound(
        epsilon_lower=max((way.epsilon_lower for way in ways), default=0.0),
        most_detectable=most,
        confidence=confidence,
        ways=tuple(ways),
        estimates={
            name: one_shot_epsilon(
                *(values[np.isfinite(values) & side] for side in (included, ~included)), delta=delta
            )
            for name, values in sums.items()
        },
    )
