r"""From what was released to a score per canary; a higher score means: more likely in.

*White box*: every noisy sum is known. Step t's sum, in units of the clip norm, is
:math:`\sum_i k_{ti} g_i + \text{others} + \sigma z`, with :math:`k_{ti}` how often canary i was
drawn. Least squares over the canaries' directions (ridge, as directions drift) gives
:math:`\hat k_{ti}`, and the score is the log-likelihood ratio of "in" against "out",

.. math:: \sum_t \log \sum_k P[\mathrm{Bin}(G, q) = k] \exp\frac{2 k \hat k_{ti} - k^2}{2 s_i^2}.

*Black box*: only the released weights are known: how much likelier the canary's text became.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp

from userdp.plans import Plan

_RIDGE = 0.05  # directions drift in training, so the least squares must not trust small differences
_MOST_DRAWN = 16  # of a canary's copies in one step: more are too rare to matter for the score
_LEAST_SPREAD = 0.2  # directions drift and others' gradients spill over, noise or none


def white_box_scores(
    answers_TM: NDArray[np.float64], gram_MM: NDArray[np.float64], plan: Plan
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""The log-likelihood ratios, and the plain sums over the steps of k̂; float64 (canaries,) each.

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
    scores: NDArray[np.float64] = logsumexp(np.stack(terms), axis=0).sum(0)
    return scores, drawn_TM.sum(0)
