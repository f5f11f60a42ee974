r"""How surprising an observation is: minus the logarithm of a bound on its probability, in nats.

Each function returns an s such that, if the thing is as it should be, the probability of s or more
is at most 2e^{-s}. All bounds are exact for every sample size; nothing is asymptotic.

* A count of N independent events of probability p, or of negatively associated ones, as the
  inclusions of a fixed-size draw are (Joag-Dev and Proschan 1983): Chernoff's
  :math:`P(S \ge aN) \le e^{-N\,\mathrm{KL}(a \| p)}`, and the same below.
* The sum of squares of n standard Gaussian numbers is chi-square, with
  :math:`P(S \ge xn) \le e^{-n(x - 1 - \log x)/2}`, and the same below 1 (Chernoff).
* A standard Gaussian number: :math:`P(|Z| \ge z) \le 2e^{-z^2/2}`.
* The distance of an empirical distribution function from the true one:
  :math:`P(D \ge d) \le 2e^{-2nd^2}` (Dvoretzky, Kiefer and Wolfowitz 1956; Massart 1990).

Noise is rounded to a grid of at most 2^-20 standard deviations. That moves a root mean square by
at most 2^-21 and a distribution function by at most 2^-21; `of_squares` and `of_distribution` allow
for it.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Floats = NDArray[np.float64]

MOST: Final = 30.0
"""A look that is more surprising than this is a failure: 2e^-30 < 2e-13 for a right mechanism."""

_ROUNDING = 2.0**-21
"""Half the grid, in standard deviations, at most."""


def of_count(count: float, trials: int, probability: float) -> float:
    """Of ``count`` events in ``trials``.

    >>> of_count(50, 100, 0.5), round(of_count(70, 100, 0.5), 1)
    (0.0, 8.2)
    """
    if not trials:
        return 0.0
    part = count / trials
    if not 0 <= part <= 1:
        return math.inf
    return trials * (_entropy(part, probability) + _entropy(1 - part, 1 - probability))


def _entropy(part: float, probability: float) -> float:
    if part == 0:
        return 0.0
    return part * math.log(part / probability) if probability > 0 else math.inf


def of_squares(numbers: Floats) -> float:
    """Of the sum of squares of numbers that should be standard Gaussian ones on a grid.

    >>> of_squares(np.zeros(0)), of_squares(np.full(100, 2.0)) > MOST
    (0.0, True)
    """
    count = numbers.size
    if not count:
        return 0.0
    root = math.sqrt(float(np.dot(numbers, numbers)) / count)
    if not math.isfinite(root):
        return math.inf
    if root > 1:
        root = max(1.0, root - _ROUNDING)
    else:
        root = min(1.0, root + _ROUNDING)
    return count / 2 * (root**2 - 1 - 2 * math.log(root))


def of_number(number: float) -> float:
    """Of one number that should be a standard Gaussian one."""
    return number**2 / 2


def of_distribution(numbers: Floats) -> float:
    """Of the distribution of numbers that should be standard Gaussian ones on a grid.

    >>> of_distribution(np.linspace(-1, 1, 1000)) > MOST
    True
    """
    count = numbers.size
    if not count:
        return 0.0
    if not np.isfinite(numbers).all():
        return math.inf
    should = ndtr(np.sort(numbers))
    steps = np.arange(count + 1) / count
    apart = max(float((steps[1:] - should).max()), float((should - steps[:-1]).max()))
    return 2 * count * max(0.0, apart - _ROUNDING) ** 2
