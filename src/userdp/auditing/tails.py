r"""How often a right run looks at least this odd: p-values that hold at every size.

Each function returns a number p(x) with :math:`P[p(X) \le a] \le a` for every a in [0, 1] when X
comes from a right run: exact laws, or bounds that hold for every number of steps and units. No
limit theorem is used, since the sums here may have one term. Where a law is computed with rounding,
the rounding is added.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from userdp.accounting.roots import valley

_REACH, _OUTSIDE = 60.0, 4e-39
_LEAST_WEIGHT = 1e-300  # below, a weight has lost digits to underflow
_ROUNDING = 1e-9  # relative; far above what the sums here lose
_MOST_EXPONENT = math.log(60.0)  # e^-60 is nothing beside the weight of any neighbour


def two_sided(lower: float, upper: float) -> float:
    """A p-value from both tails, min(1, 2 min(P[X <= x], P[X >= x])).

    Guarantee: each half is at most a/2 with probability at most a/2, so that by a union bound the
    result is at most a with probability at most a, for discrete X too.
    """
    return float(min(1.0, 2 * min(lower, upper)))


def ks_p_value(distance: float, count: int) -> float:
    r"""Of a Kolmogorov-Smirnov distance of ``count`` independent numbers from their known law.

    .. math:: P[\sup_x |F_n(x) - F(x)| > d] \le 2 e^{-2 n d^2}

    for every n and d > 0 (Massart 1990, "The tight constant in the Dvoretzky-Kiefer-Wolfowitz
    inequality", Corollary 1). Nothing is estimated from the numbers, the scale neither: with an
    estimated scale the distance has another law.
    """
    return float(min(1.0, 2 * math.exp(-2 * count * distance**2)))


def cosine_p_value(cosine: float, *, dimension: int, pairs: int) -> float:
    r"""Of the greatest ``|cosine|`` among ``pairs`` pairs of Gaussian vectors.

    The direction of a Gaussian vector is uniform on the sphere, whatever its length, so that a
    pair's :math:`c^2` is Beta(1/2, (d - 1)/2) exactly: :math:`P[|c| \ge x] = I_{1-x^2}((d-1)/2,
    1/2)`. A union bound over the pairs makes no use of their dependence.
    """
    if dimension < 2:
        return 1.0  # two numbers always point the same way or opposite ways
    tail = float(special.betainc((dimension - 1) / 2, 0.5, min(1.0, max(0.0, 1 - cosine**2))))
    return min(1.0, pairs * tail * (1 + _ROUNDING))


def spread_p_value(numbers: NDArray[np.int64], *, trials: int, probability: float) -> float:
    r"""Of how far independent Binomial(trials, probability) numbers lie apart, two-sided.

    The statistic is :math:`S = \sum_i x(n_i)` with :math:`x(n) = (n - \mathrm{trials} \cdot
    \mathrm{probability})^2`. Chernoff's bound holds for every t > 0,

    .. math:: P[S \le s] \le \bigl( E[e^{-t (x - s/m)}] \bigr)^m

    for m numbers (Markov's inequality for :math:`e^{-tS}`; for the upper tail with the other sign),
    so that nothing depends on how well the search finds the best t. Where S is the least that it
    can be, as of batches of one fixed size, the bound is the probability itself.

    A number beyond 60 (1 + σ) of its mean is left out of the sum: by Bernstein's inequality it has
    probability at most 2 exp(-d²/2 / (σ² + d/3)) at distance d, which is below 4e-39 for every σ.

    Args:
        numbers: one at least.
        trials: of each number.
        probability: of each trial; strictly between 0 and 1.
    """
    count, mean = len(numbers), trials * probability
    reach = _REACH * (1 + math.sqrt(mean * (1 - probability)))
    values = np.arange(
        max(0, math.floor(mean - reach)), min(trials, math.ceil(mean + reach)) + 1, dtype=np.int64
    )
    weights = np.asarray(stats.binom.pmf(values, trials, probability))
    kept = weights > _LEAST_WEIGHT
    squares, weights = np.square(values[kept] - mean), weights[kept]
    each, expected = float(np.square(numbers - mean).mean()), mean * (1 - probability)
    sign = -1.0 if each <= expected else 1.0

    def log_bound(exponent: float) -> float:
        t = math.exp(exponent)
        powers = sign * t * (squares - each)
        top = float(powers.max())
        moment = math.log(float(weights @ np.exp(powers - top))) + top
        return count * (moment + 1e-12 + 1e-15 * t * (each + 1))  # and what rounding may lose

    # S/m varies by about σ² / √m: the exponents searched reach far to both sides of it.
    middle = -math.log(max(1.0, expected / math.sqrt(count)))
    grid = np.linspace(middle - 20, max(middle, _MOST_EXPONENT), 81)
    at = int(np.argmin([log_bound(float(one)) for one in grid]))
    low, high = float(grid[max(0, at - 1)]), float(grid[min(len(grid) - 1, at + 1)])
    best = valley(log_bound, low, high, turns=20)
    tail = math.exp(min(0.0, log_bound(best), log_bound(float(grid[at]))))
    return min(1.0, 2 * (tail * (1 + _ROUNDING) + count * _OUTSIDE))
