r"""From canaries' scores to a lower bound on ε that holds with a stated confidence.

A fair coin of its own admits each of m users. An (ε, δ)-DP mechanism lets nobody guess the coins
too well (Steinke, Nasr & Jagielski 2023, Theorem 5.2). Of r guesses at least v are right
with probability at most

.. math:: \beta + 2 m \delta \alpha, \qquad \beta = P[W \ge v], \quad
          \alpha = \max_{1 \le i \le v} \tfrac{1}{i} P[v - i \le W < v]

where W is binomial with r trials of probability :math:`e^\varepsilon / (e^\varepsilon + 1)`. An ε
for which that probability is below one minus the confidence is refuted.

The number of guesses on each side is fixed before coins are seen. A higher score means:
more likely in. *Black box*, only the released weights are known: how much likelier the canary's
text became. *White box*, every noisy sum is known. Step t's sum, in units of the clip norm, is
:math:`\sum_i k_{ti} g_i + \text{others} + \sigma z`, with :math:`k_{ti}` how often canary i was
drawn. Least squares over the canaries' directions (ridge, as directions drift) gives
:math:`\hat k_{ti}`, and the score is the log-likelihood ratio of "in" against "out",

.. math:: \sum_t \log \sum_k P[\mathrm{Bin}(G, q) = k] \exp\frac{2 k \hat k_{ti} - k^2}{2 s_i^2}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp

from userdp.accounting.certified_search import bisect
from userdp.core.vocabulary import require_probability
from userdp.plans import Plan

# (part guessed "in", part guessed "out"): a few sharp guesses or many vague ones. A canary that a
# step drew stands out; one that no step drew does not, hence the row without guesses of "out".
_PARTS = ((0.5, 0.5), (0.25, 0.25), (0.125, 0.0))
_MOST_EPSILON, _CLOSE = 100.0, 100.0 * 2.0**-48
_RIDGE = 0.05  # directions drift in training, so the least squares must not trust small differences
_MOST_DRAWN = 16  # of a canary's copies in one step: more are too rare to matter for the score
_LEAST_SPREAD = 0.2  # directions drift and others' gradients spill over, noise or none


@dataclass(frozen=True, kw_only=True, slots=True)
class CanaryBound:
    """The lower bound on ε that canaries prove. Operator-only where real users train beside them.

    Args:
        epsilon_lower: holds with ``confidence``, whichever way of guessing it came from.
        most_detectable: the bound if every guess were right: the largest ε this could prove.
        confidence: of ``epsilon_lower``.
    """

    epsilon_lower: float
    most_detectable: float
    confidence: float


def one_run_p_value(
    *, canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """At most the probability of so many right guesses if the mechanism were (ε, δ)-DP.

    Args:
        canaries: m, users in or out by independent fair coins.
        guesses: r, of them guessed; at most m. Fixed without looking at the coins.
        correct: v, of the guesses that are right; at most r.
        epsilon: of the hypothesis; at least 0.
        delta: of the hypothesis; in [0, 1].

    Source: Steinke et al. 2023, Theorem 5.2 and the algorithm of Appendix D.

    >>> one_run_p_value(canaries=10, guesses=10, correct=10, epsilon=0.0, delta=0.0) == 2**-10
    True
    """
    right = 1 / (1 + math.exp(-epsilon))
    beta = float(stats.binom.sf(correct - 1, guesses, right))
    if not correct:
        return 1.0
    below = np.cumsum(stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, right))
    alpha = float(np.max(below / np.arange(1, correct + 1)))
    return min(1.0, beta + 2 * canaries * delta * alpha)


def one_run_epsilon(
    *, canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """The largest ε that the guesses refute, rounded down; 0 where they refute none.

    Guarantee: if the mechanism is (ε, δ)-DP per user, the result exceeds ε with probability at most
    ``1 - confidence``. Proof: let v₀ be the least number of right guesses whose result e₀ exceeds
    ε. The mechanism is (e₀, δ)-DP too, so that v₀ or more are right with probability at most the
    p-value of v₀ at e₀; and that is below ``1 - confidence``, since e₀ is refuted by v₀.

    Source: Steinke et al. 2023, Theorem 5.2.
    """
    require_probability("confidence", confidence)

    def refuted(epsilon: float) -> bool:
        p = one_run_p_value(
            canaries=canaries, guesses=guesses, correct=correct, epsilon=epsilon, delta=delta
        )
        return p < 1 - confidence

    if not refuted(0.0):
        return 0.0
    return bisect(refuted, _MOST_EPSILON, 0.0, absolute=_CLOSE)


def canary_bound(
    scores: Mapping[str, NDArray[np.float64]],
    included: NDArray[np.bool_],
    *,
    delta: float,
    confidence: float = 0.95,
) -> CanaryBound:
    """The best lower bound over a fixed list of ways of guessing, at one confidence for all.

    Guarantee: ``epsilon_lower`` exceeds the mechanism's ε with probability at most
    ``1 - confidence``: the level is divided by the number of ways (a union bound). Scores must not
    have been made with the coins. The theorem takes the number of guesses for fixed: a score that
    is no number (the run diverged) is the lowest, guessed "out", and no canary is left out.

    Args:
        scores: by name, float64 (canaries,); a higher score means: more likely in.
        included: the coins.
        delta: of the claim.
        confidence: of the bound.
    """
    total = len(included)
    tops = {(int(total * top), int(total * bottom)) for top, bottom in _PARTS} - {(0, 0)}
    plan = [(name, *parts) for name in scores for parts in sorted(tops)]
    each = 1 - (1 - confidence) / max(1, len(plan))
    lower = most = 0.0
    for name, top, bottom in plan:
        told = np.nan_to_num(scores[name], nan=np.finfo(np.float64).min)
        order = np.argsort(-told, kind="stable")
        right = included[order[:top]].sum() + (~included[order[total - bottom :]]).sum()
        refuted = partial(
            one_run_epsilon, canaries=total, guesses=top + bottom, delta=delta, confidence=each
        )
        lower = max(lower, refuted(correct=int(right)))
        most = max(most, refuted(correct=top + bottom))
    return CanaryBound(epsilon_lower=lower, most_detectable=most, confidence=confidence)


def white_box_scores(
    answers_TM: NDArray[np.float64], gram_MM: NDArray[np.float64], plan: Plan
) -> NDArray[np.float64]:
    r"""The log-likelihood ratios of the module's docstring; float64 (canaries,).

    Args:
        answers_TM: per step, the noisy sum along each unit direction, over the clip norm.
        gram_MM: inner products of the directions.
        plan: sampling probability and group size.
    """
    inverse = np.linalg.inv(gram_MM + _RIDGE * np.eye(len(gram_MM)))
    drawn_TM = answers_TM @ inverse
    drawn_TM -= np.median(drawn_TM, axis=1, keepdims=True)  # what all canaries share is not theirs
    # Robust: most steps draw no canary, and the scale must not come from those that do.
    spread = 1.4826 * np.median(np.abs(drawn_TM - np.median(drawn_TM, axis=0)), axis=0)
    spread = np.maximum(spread, _LEAST_SPREAD)
    group = plan.sampling.items
    drawn = np.arange(min(group, _MOST_DRAWN) + 1)
    weights = stats.binom.logpmf(drawn, group, plan.sampling.chance(plan.population))
    size = float(np.median(np.diag(gram_MM @ inverse)))
    terms = [
        weight + (2 * k * size * drawn_TM - (k * size) ** 2) / (2 * spread**2)
        for k, weight in zip(drawn.tolist(), weights.tolist(), strict=True)
    ]
    return np.asarray(logsumexp(np.stack(terms), axis=0).sum(0))
