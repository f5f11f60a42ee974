r"""How often a right run looks at least this odd: p-values that hold at every size.

Each function returns a number p(x) with :math:`P[p(X) \le a] \le a` for every a in [0, 1] when X
comes from a right run: exact laws, or bounds that hold for every number of steps and units. No
limit theorem is used, since the sums here may have one term. Where the law is computed with
rounding, the rounding is added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from userdp.accounting.roots import bisect, valley

_MOST_CELLS = 1 << 12  # a direct convolution of so many takes some milliseconds
_REACH, _OUTSIDE = 60.0, 4e-39  # the law ends there, and what lies beyond: `BinomialSpread._rest`
_LEAST_WEIGHT = 1e-300  # below, a weight has lost digits to underflow
_ROUNDING = 1e-9  # added to every tail; far above what convolutions lose


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


def ks_threshold(level: float, count: int) -> float:
    """The distance at which `ks_p_value` is ``level``."""
    return math.sqrt(math.log(2 / level) / (2 * count))


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


def cosine_threshold(level: float, *, dimension: int, pairs: int) -> float:
    """The cosine at which `cosine_p_value` is ``level``, about; for words."""
    if dimension < 2:
        return math.inf
    return math.sqrt(1 - float(special.betaincinv((dimension - 1) / 2, 0.5, level / pairs)))


@dataclass(frozen=True, kw_only=True, slots=True)
class BinomialSpread:
    r"""The law of how far ``count`` independent Binomial(trials, probability) numbers lie apart.

    The statistic is :math:`S = \sum_i x(n_i)`, where x(n) is (n - c)² for c the multiple of 1/2
    nearest to the mean; scaled so that it takes whole numbers from 0 on: (n - c)² where c is whole,
    ((2n - 2c)² - 1)/8 where it is a half.

    Args:
        count: how many numbers are summed over, at least 1.
        trials: of each number.
        probability: of each trial; strictly between 0 and 1.
    """

    count: int
    trials: int
    probability: float

    @property
    def _twice(self) -> int:
        return round(2 * self.trials * self.probability)

    def total(self, numbers: NDArray[np.int64]) -> int:
        """S of ``count`` numbers."""
        return int(self.cells(numbers).sum(dtype=np.float64))

    def cells(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """x(n) of each number."""
        twice = self._twice
        scale = 8 if twice % 2 else 4
        cells: NDArray[np.int64] = ((2 * numbers - twice) ** 2 - twice % 2) // scale
        return cells

    def squares(self, spread: float) -> float:
        """Σ (n - c)², of which ``spread`` is S."""
        return 2 * spread + self.count / 4 if self._twice % 2 else spread

    @property
    def mean(self) -> float:
        """E[S]."""
        q = self.probability
        around = self.trials * q * (1 - q) + (self.trials * q - self._twice / 2) ** 2
        return self.count * ((around - 0.25) / 2 if self._twice % 2 else around)

    def p_value(self, spread: int) -> float:
        """Of S = ``spread``, two-sided."""
        return two_sided(self.lower_tail(spread), self.upper_tail(spread))

    def lower_tail(self, spread: int) -> float:
        """At least P[S <= spread]; equal to it, up to rounding, where S fits a small table."""
        if spread < 0:
            return 0.0
        table = _table(self)
        if spread < len(table):
            return min(1.0, float(table[spread]) + self._rest)
        return min(1.0, self._chernoff(spread, sign=-1.0) + self._rest)

    def upper_tail(self, spread: int) -> float:
        """At least P[S >= spread]; equal to it, up to rounding, where S fits a small table."""
        if spread <= 0:
            return 1.0
        table = _table(self)
        if spread <= len(table):
            return min(1.0, max(0.0, 1 - float(table[spread - 1])) + self._rest)
        return min(1.0, self._chernoff(spread, sign=1.0) + self._rest)

    def lower_threshold(self, level: float) -> int:
        """The largest S with ``lower_tail(S) <= level``; -1 if there is none."""
        if self.lower_tail(0) > level:
            return -1
        high = math.ceil(self.mean) + 1
        return math.floor(
            bisect(lambda s: self.lower_tail(math.floor(s)) <= level, high, 0.0, absolute=0.5)
        )

    @property
    def _rest(self) -> float:
        """What the sums leave out, and their rounding.

        By Bernstein's inequality a number lies more than t = 60 (1 + σ) from its mean with
        probability at most 2 exp(-t²/2 / (σ² + t/3)), which is below 4e-39 for every σ. A table's
        terms are all positive, so that rounding is a relative error: of 1e-16 for each of at most
        2^12 terms in each of at most 80 convolutions, and that of the weights ``count`` times.
        """
        return self.count * _OUTSIDE + _ROUNDING

    def law(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """x(n) and the probability of n, over all n within reach."""
        mean = self.trials * self.probability
        reach = _REACH * (1 + math.sqrt(mean * (1 - self.probability)))
        numbers = np.arange(
            max(0, math.floor(mean - reach)),
            min(self.trials, math.ceil(mean + reach)) + 1,
            dtype=np.int64,
        )
        weights = np.asarray(stats.binom.pmf(numbers, self.trials, self.probability))
        kept = weights > _LEAST_WEIGHT
        return self.cells(numbers[kept]), weights[kept]

    def _chernoff(self, spread: int, *, sign: float) -> float:
        r"""Chernoff's bound: for every t > 0, :math:`P[S \le s] \le e^{t s} E[e^{-t x}]^{count}`.

        (Markov's inequality for e^{-tS}; for the upper tail with the other sign.) Every t gives a
        bound, so nothing depends on how well the search below finds the best one.
        """
        if sign * (spread - self.mean) <= 0:
            return 1.0
        values, weights = self.law()

        def bound(exponent: float) -> float:
            t = sign * math.exp(exponent)
            tops = t * values
            top = float(tops.max())
            moment = math.log(float(weights @ np.exp(tops - top))) + top
            return self.count * (moment + 1e-13) - t * spread

        # S varies by about mean / √count: the exponents searched reach far to both sides of it.
        middle = -math.log(max(1.0, self.mean / math.sqrt(self.count)))
        grid = np.linspace(middle - 20, middle + 8, 57)
        at = int(np.argmin([bound(float(e)) for e in grid]))
        low, high = float(grid[max(0, at - 1)]), float(grid[min(len(grid) - 1, at + 1)])
        return math.exp(min(0.0, bound(float(grid[at])), bound(valley(bound, low, high, turns=20))))


@lru_cache(maxsize=8)
def _table(law: BinomialSpread) -> NDArray[np.float64]:
    """P[S <= s] for s below `_MOST_CELLS`; empty where S is mostly beyond.

    The law of one number to the power ``count``, by repeated squaring.
    """
    if law.mean > _MOST_CELLS / 2:
        return np.zeros(0)
    values, weights = law.law()
    kept = values < _MOST_CELLS
    power = np.bincount(values[kept], weights=weights[kept], minlength=_MOST_CELLS)
    weights_of_sum, count = np.array([1.0]), law.count
    while True:
        if count & 1:
            weights_of_sum = np.convolve(weights_of_sum, power)[:_MOST_CELLS]
        count >>= 1
        if not count:
            return np.asarray(np.cumsum(weights_of_sum), dtype=np.float64)
        power = np.convolve(power, power)[:_MOST_CELLS]
