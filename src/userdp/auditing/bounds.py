r"""From guesses to a lower bound on ε that holds with a stated confidence.

With m users each in or out by a fair coin of their own, an (ε, δ)-DP mechanism lets nobody guess
the coins too well (Steinke, Nasr & Jagielski 2023, Theorem 5.2). Of r guesses at least v are right
with probability at most

.. math:: \beta + 2 m \delta \alpha, \qquad \beta = P[W \ge v], \quad
          \alpha = \max_{1 \le i \le v} \tfrac{1}{i} P[v - i \le W < v]

where W is binomial with r trials of probability :math:`e^\varepsilon / (e^\varepsilon + 1)`. An ε
for which that probability is below one minus the confidence is refuted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from userdp.accounting.roots import bisect
from userdp.vocabulary import require_count, require_probability

_MOST_EPSILON = 100.0
_STEPS = 48


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
    require_count("canaries", canaries)
    require_count("guesses", guesses, at_least=0, at_most=canaries)
    require_count("correct", correct, at_least=0, at_most=guesses)
    if not 0 <= epsilon < math.inf or not 0 <= delta <= 1:
        raise ValueError(f"epsilon must be in [0, inf), delta in [0, 1], got {epsilon}, {delta}")
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

    return _last(refuted)


def _last(holds: Callable[[float], bool]) -> float:
    """The largest number in [0, 100] up to which ``holds``, from below; 0 where it never does."""
    if not holds(0.0):
        return 0.0
    return bisect(holds, _MOST_EPSILON, 0.0, absolute=_MOST_EPSILON * 2.0**-_STEPS)


def gaussian_epsilon(
    *, mean: float, std: float, other_mean: float, other_std: float, delta: float
) -> float:
    r"""The ε at which two Gaussians are exactly δ apart, the worse of both directions.

    .. math:: \int \max(0, p(x) - e^\varepsilon q(x))\,dx = \delta

    computed on a grid of 12 standard deviations around both means. Both deviations are
    above 0.
    """
    low = min(mean - 12 * std, other_mean - 12 * other_std)
    high = max(mean + 12 * std, other_mean + 12 * other_std)
    x = np.linspace(low, high, 40_001)
    first, second = stats.norm.logpdf(x, mean, std), stats.norm.logpdf(x, other_mean, other_std)
    width = float(x[1] - x[0])

    def apart(p: NDArray[np.float64], q: NDArray[np.float64], epsilon: float) -> float:
        gap = np.exp(p) - np.exp(np.minimum(q + epsilon, 700))
        return float(np.maximum(0.0, gap).sum()) * width

    return max(
        _last(lambda epsilon: apart(first, second, epsilon) > delta),
        _last(lambda epsilon: apart(second, first, epsilon) > delta),
    )


def one_shot_epsilon(
    included: NDArray[np.float64], excluded: NDArray[np.float64], *, delta: float
) -> float | None:
    """An *estimate* of ε: Gaussians are fitted to the scores of canaries in and out.

    It has no confidence level: it takes the scores for independent and normal, and the canaries for
    the worst case. None with fewer than two canaries on a side, or scores that are all equal.

    Source: Andrew et al. 2024, Algorithm 3 (the null from canaries that did not take part).
    """
    if len(included) < 2 or len(excluded) < 2:
        return None
    std, other_std = float(np.std(included, ddof=1)), float(np.std(excluded, ddof=1))
    if not (0 < std < math.inf and 0 < other_std < math.inf):
        return None
    return gaussian_epsilon(
        mean=float(np.mean(included)),
        std=std,
        other_mean=float(np.mean(excluded)),
        other_std=other_std,
        delta=delta,
    )
