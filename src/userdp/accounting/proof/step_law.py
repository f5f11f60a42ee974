r"""The law of one step's shift, in balls: the likelihood ratio Z and its posterior moments.

A step shifts the noise N(0, σ²) by ``scale``·k, where k is drawn from a binomial law (Charles et
al. 2024, Theorems 1 to 3; Ganesh 2024, Theorem 3.1) or a hypergeometric one (Ganesh 2024,
Theorem 3.3). In units of σ, with a = scale/σ and t = e^{az}, the likelihood ratio of the step is

.. math:: Z(z) = \sum_k q_k e^{k a z - k² a²/2} = \sum_k c_k t^k, \qquad c_k = q_k e^{-k²a²/2}.

As a polynomial in t it has real roots ≤ 0 only (docs/proof.md, Lemma 1): everything that the proof
knows of Z in the complex plane comes from that.

Every number of the proof is a ball of the library Arb (through ``python-flint``): a midpoint and a
radius that contain the exact value, whatever was rounded. Floats enter as the exact dyadic numbers
that they are. Comparisons of balls are true only when they hold for every pair of their points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from userdp.accounting.item_count_laws import Binomial, Law
from userdp.core.environment import library

Ball = Any  # flint.arb or flint.acb: the library ships no types


def flint_library() -> ModuleType:
    """The module ``flint``.

    Raises:
        UseError: python-flint is not installed.
    """
    module: ModuleType = library("flint", extra="proof", what="a proof (ball arithmetic by Arb)")
    return module


def float_above(ball: Ball) -> float:
    """The least convenient float that is at least every point of ``ball``; inf if there is none."""
    arb = flint_library().arb
    if not ball.is_finite():
        return math.inf
    value = float(ball.upper())
    while not arb(value) >= ball:
        value = math.nextafter(value, math.inf)
    return value


def float_below(ball: Ball) -> float:
    """A float that is at most every point of ``ball``; -inf if there is none."""
    return -float_above(-ball)


def log_float(ball: Ball) -> float:
    """log of the upper end of a non-negative ball as a float, for planning only; -inf at 0."""
    upper = ball.upper()
    return float(upper.log()) if upper > 0 else -math.inf


def chance(law: Law, k: int) -> Ball:
    """q_k as a ball."""
    arb = flint_library().arb
    if isinstance(law, Binomial):
        p = arb(law.probability)
        return arb.bin_uiui(law.trials, k) * p**k * (1 - p) ** (law.trials - k)
    return (
        arb.bin_uiui(law.marked, k)
        * arb.bin_uiui(law.population - law.marked, law.draws - k)
        / arb.bin_uiui(law.population, law.draws)
    )


def growth(law: Law, k: int) -> Ball:
    """q_{k+1} / q_k as a ball."""
    arb = flint_library().arb
    if isinstance(law, Binomial):
        p = arb(law.probability)
        return arb(law.trials - k) / (k + 1) * (p / (1 - p))
    above = arb(law.marked - k) * (law.draws - k)
    return above / (k + 1) / (law.population - law.marked - law.draws + k + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """``count`` steps whose noise N(0, σ²) is shifted by ``scale``·k, k drawn from ``law``."""

    law: Law
    scale: float
    noise_multiplier: float
    count: int

    @property
    def is_gaussian(self) -> bool:
        """One certain shift: a plain Gaussian mechanism."""
        return self.law.is_certain

    @property
    def unit(self) -> Ball:
        """a = scale/σ, the shift of k = 1 in noise standard deviations."""
        arb = flint_library().arb
        return arb(self.scale) / arb(self.noise_multiplier)


class Ratio:
    """Z on a range of the real axis and above it, from a window of k.

    The terms c_k t^k are log-concave in k (real-rootedness, or directly: q_k and e^{-k²a²/2} are),
    so those outside the window sum to at most the edge term times ρ/(1-ρ), ρ the ratio of the two
    terms at the edge; ρ is largest at the end of the range, where it is checked once.
    Precision is that of the surrounding ``flint.ctx``.
    """

    def __init__(self, steps: Steps, window: tuple[int, int], reach: tuple[float, float]) -> None:
        flint = flint_library()
        arb = flint.arb
        law, self.a = steps.law, steps.unit
        low, high = window
        self.low, self.high = low, high
        self.trials = law.most
        weights = [chance(law, low)]
        for k in range(low, high):
            weights.append(weights[-1] * growth(law, k))
        self.weights = weights
        half = self.a**2 / 2
        self.coefficients = [q * (-half * k * k).exp() for k, q in enumerate(weights, low)]
        self._sums = [
            flint.arb_poly([c * (k - low) ** r for k, c in enumerate(self.coefficients, low)])
            for r in range(3)
        ]
        self._line: tuple[Ball, Ball, Ball] | None = None
        self._above = self._below = arb(0)
        if high < law.most:
            rho = growth(law, high) * (-half * (2 * high + 1) + self.a * arb(reach[1])).exp()
            self._above = _geometric(rho)
        if low > 0:
            rho = (half * (2 * low - 1) - self.a * arb(reach[0])).exp() / growth(law, low - 1)
            self._below = _geometric(rho)
        self.reach = reach

    def _missing(self, t: Ball, power: int) -> Ball:
        """At most this much is missing from Σ (k - low)^power c_k t^{k-low}, for real t > 0."""
        many = max(self.trials, 1) ** power
        above = self.coefficients[-1] * t ** (self.high - self.low) * self._above
        return many * (above + self.coefficients[0] * self._below)

    def sums(self, x: Ball) -> tuple[Ball, Ball, Ball]:
        """Enclosures of Σ (k-low)^r c_k t^{k-low} at the real point x, r = 0, 1, 2."""
        arb = flint_library().arb
        t = (self.a * arb(x)).exp()
        values = []
        for power, polynomial in enumerate(self._sums):
            slack = self._missing(t, power).upper()
            values.append(polynomial(t) + arb(0, slack))
        return values[0], values[1], values[2]

    def at(self, x: Ball) -> tuple[Ball, Ball, Ball]:
        """log Z(x), the posterior mean of k and its variance W(x), at the real point x."""
        arb = flint_library().arb
        zero, one, two = self.sums(x)
        mean = one / zero
        loss = zero.log() + self.low * self.a * arb(x)
        variance = two / zero - mean**2
        return loss, mean + self.low, variance

    def above(self, x: float, y: Ball) -> tuple[Ball, Ball]:
        """Z(x + iy)/t^low as a complex ball, and the log of t: z·a.

        On one line the angle θ = ay is the same for all x: the real and the imaginary part are
        polynomials in |t| with coefficients c_k cos(k - low)θ and c_k sin(k - low)θ. Real balls do
        not widen when they are multiplied; rectangles in the plane do.
        """
        flint = flint_library()
        arb, acb = flint.arb, flint.acb
        if self._line is None or self._line[0] is not y:
            turns = [
                (self.a * y * (k - self.low)).sin_cos() for k in range(self.low, self.high + 1)
            ]
            pairs = list(zip(self.coefficients, turns, strict=True))
            self._line = (
                y,
                flint.arb_poly([c * cos for c, (_, cos) in pairs]),
                flint.arb_poly([c * sin for c, (sin, _) in pairs]),
            )
        log_t = acb(self.a * arb(x), self.a * y)
        t = log_t.real.exp()
        slack = arb(0, self._missing(t, 0).upper())
        return acb(self._line[1](t) + slack, self._line[2](t) + slack), log_t


def _geometric(rho: Ball) -> Ball:
    """ρ/(1-ρ), for a ratio that must be below 1."""
    if not rho < 1:
        raise ArithmeticError("the window of k is too narrow for this range")
    return rho / (1 - rho)


def expectation(law: Law, window: tuple[int, int], value: Callable[[int], Ball]) -> Ball:
    """Σ q_k value(k) over all k, from the k in ``window`` (both ends included).

    q_k is log-concave in k. Where value(k) > 0 is so too, what lies outside the window is at most a
    geometric series from its edge; it is enclosed between 0 and that.

    Raises:
        ArithmeticError: the terms do not fall outside the window.
    """
    arb = flint_library().arb
    low, high = window
    weight, result = chance(law, low), arb(0)
    if low > 0:
        rho = value(low - 1) / value(low) / growth(law, low - 1)
        result += arb(0, (weight * value(low) * _geometric(rho)).upper())
    for k in range(low, high + 1):
        result += weight * value(k)
        if k < high:
            weight = weight * growth(law, k)
    if high < law.most:
        rho = value(high + 1) / value(high) * growth(law, high)
        result += arb(0, (weight * value(high) * _geometric(rho)).upper())
    return result


def continuous_log(ratio: Ratio, x: float, y: Ball) -> tuple[Ball, Ball]:
    r"""ℓ(x + iy) on its continuous branch (ℓ real on the real axis), and W(x).

    Z is a product of (t + r_j): with p_j = e^{ax}/(e^{ax} + r_j), θ = ay and
    g_j(θ) = arg(1 - p_j + p_j e^{iθ}), Im ℓ = Σ g_j, m(x) = Σ p_j and W(x) = Σ p_j(1 - p_j).
    |g_j' - p_j| ≤ 2 p_j(1-p_j) tan²(θ/2), so

    .. math:: |Im ℓ(x+iy) - ay\, m(x)| ≤ W(x)\,(4\tan(ay/2) - 2ay)

    (docs/proof.md, Lemma 3). Where the right side and the distance of one candidate from a·y·m(x)
    sum to less than 2π, no other candidate satisfies it: that tells the multiple of 2π that the
    principal logarithm lacks.

    Raises:
        ArithmeticError: the bound does not tell.
    """
    flint = flint_library()
    arb, acb = flint.arb, flint.acb
    _, mean, variance = ratio.at(x)
    value, log_t = ratio.above(x, y)
    principal = value.log() + ratio.low * log_t
    theta = ratio.a * y
    slack = (variance * (4 * (theta / 2).tan() - 2 * theta)).upper()
    centre = theta * mean
    turns = (centre - principal.imag) / (2 * arb.pi())
    whole = math.floor(float(turns.mid()) + 0.5)
    shifted = principal + acb(0, 2 * arb.pi() * whole)
    # the other candidates are at least 2π - |shifted - centre| away from the centre
    if not abs(shifted.imag - centre) + slack < 2 * arb.pi():
        raise ArithmeticError("the branch of the logarithm is not determined on this line")
    return shifted, variance
