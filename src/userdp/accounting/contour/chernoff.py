r"""Chernoff bounds of delta, from upper sums on a coarse real grid (docs, eq. 7 and 8).

They bound what the sum along Re s = c has too much (its excess), and delta itself where no sum is
possible. Each order a gives a bound, so no order can be a wrong choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from userdp.accounting.contour.losses import Floats
from userdp.accounting.contour.side import LOG_SQRT_2PI, Side, Step

# Orders in parts of the abscissa c: below it they bound the excess on the left (m <= -1), above it
# the one on the right. None is c itself, where the geometric series of the excess diverges.
RATIOS = np.concatenate([np.linspace(0.02, 0.98, 33), 1 + np.geomspace(0.01, 60.0, 40)])

_SLACK = 1e-6  # of a coarse sum, in logs: docs, eq. 8
_MASS_SLACK = 1.01  # of a sum whose result only has to be of the right size


@dataclass(frozen=True, slots=True)
class Chernoff:
    """log kappa(a) + K(a) at several a: delta(eps) <= exp(value - a eps) for each (docs, eq. 7).

    K is that of the measure on certain domains of x. What was kept may reach further: ``beyond`` is
    the numerator's mass there, all steps together, so that delta(eps) of all that was kept is at
    most exp(value - a eps) + ``beyond`` (docs, eq. 4).
    """

    a: Floats
    value: Floats
    log_mass: float = 0.0  # of the numerator measure: delta <= exp(log_mass)
    beyond: float = 0.0

    def log_delta(self, epsilon: float) -> float:
        """log of an upper bound of delta(epsilon) on the domains, also for negative epsilon."""
        return min(self.log_mass, float((self.value - self.a * epsilon).min()))

    def most_delta(self, epsilon: float) -> float:
        """An upper bound of delta(epsilon) of all that was kept; may exceed 1."""
        return math.exp(min(self.log_delta(epsilon), 1.0)) * (1 + 1e-12) + self.beyond

    def log_excess(self, c: float, epsilon: float, period: Floats) -> Floats:
        """log of sum_{m != 0} delta(eps + m period) e^{c m period}, bounded; elementwise."""
        gap = np.abs(self.a - c)[None, :] * period[:, None]
        e = (self.value - self.a * epsilon)[None, :] - gap - np.log1p(-np.exp(-gap) * (1 - 1e-12))
        left = e[:, self.a < c].min(axis=1)
        # a = 0 in eq. 7: delta is at most the mass, on the left only
        zero = self.log_mass - c * period - np.log1p(-np.exp(-c * period) * (1 - 1e-12))
        right = e[:, self.a > c].min(axis=1)
        out: Floats = np.logaddexp(np.minimum(left, zero), right)
        return out

    def shortest_period(self, c: float, epsilon: float, periods: Floats, wanted: float) -> float:
        """The first of the rising ``periods`` whose log excess is at most ``wanted``, or the last.

        A short period means a coarse step h and few nodes.
        """
        fine = np.flatnonzero(self.log_excess(c, epsilon, periods) <= wanted)
        return float(periods[fine[0] if fine.size else -1])


def log_kappa(a: Floats) -> Floats:
    """log of kappa(a) = a^a / (1+a)^(1+a) = max over y > 0 of (1 - e^-y) e^{-ay}."""
    out: Floats = a * np.log(a) - (1 + a) * np.log1p(a)
    # a log a - a log(1+a) cancels for large a: -a log1p(1/a) - log1p(a)
    return np.where(a > 1, -a * np.log1p(1 / np.maximum(a, 1)) - np.log1p(a), out)


def rounded_up(log_moment: Floats) -> Floats:
    """A log-moment of a whole composition, raised by more than its float rounding."""
    out: Floats = log_moment + 1e-9 * np.abs(log_moment)
    return out


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight chi(x) = erfc(-kappa (x - x_s))/2 or 1 - chi on a domain: its logarithm and kappa.

    |erfc(u + iv)| <= e^{v^2} erfc(u), by the path from u + iv to the right. So at height y a weight
    is at most e^{(kappa y)^2} of what it is on the axis.
    """

    log: Floats
    rate: float


def log_upper_sum(step: Step, domain: slice, b: Floats, weight: Weight | None = None) -> Floats:
    """log of an upper sum of the integral of weight e^{b l} phi over a domain (docs, eq. 8).

    An order about which nothing is proven gets infinity, and so is never the least bound.

    Args:
        step: one step and its coarse grid.
        domain: the part of the grid.
        b: the exponents, (orders,).
        weight: on the domain; None for the weight 1.
    """
    log_sum, slack = _sum_and_slack(step, domain, b, weight)
    return log_sum + slack


def log_upper_share(step: Step, domain: slice, b: Floats, weight: Weight) -> Floats:
    """log of an upper bound of the weighted integral's share of the one with the weight 1.

    Both sums count the ends in excess, which only brings their ratio nearer to 1.
    """
    part, slack = _sum_and_slack(step, domain, b, weight)
    whole, its_slack = _sum_and_slack(step, domain, b, None)
    out: Floats = np.minimum(part - whole + slack + its_slack, 0.0)
    return out


def _sum_and_slack(
    step: Step, domain: slice, b: Floats, weight: Weight | None
) -> tuple[Floats, Floats]:
    ell, x = step.ell[domain], step.x[domain]
    g = b[:, None] * ell[None, :] - 0.5 * (x * x)[None, :]
    if weight is not None:
        g += weight.log[None, :]
    top = g.max(axis=1)
    e = np.exp(g - top[:, None])
    # each end counts twice: a cut in the middle of a monotone integrand leaves at most f(last) h
    total = (e.sum(axis=1) + e[:, 0] + e[:, -1]) * step.h
    slack = _quadrature_slack(step, domain, b, e, 0.0 if weight is None else weight.rate)
    return top + np.log(total) - LOG_SQRT_2PI, slack


def _quadrature_slack(step: Step, domain: slice, b: Floats, e: Floats, rate: float) -> Floats:
    """log of what the coarse rule may miss inside the domain, for sums of ``e``; at least 1e-6.

    The error is at most 2 growth / (e^{2 pi Y/h} - 1) of the integral for every Y of the strip,
    growth = e^{Y^2/2 + (rate Y)^2}, and for b < 0 also the weighted mean of (1 - Y^2 l''/2)^b.
    Infinity where that is nothing.
    """
    bend = step.bend[domain]
    most = float(bend.max())
    # beyond, the growth of the Gaussian and of the weight outweighs the decay of the error
    height = 2 * math.pi / (step.h * (1 + 2 * rate * rate))
    if most > 0:
        height = min(height, math.sqrt(1.7 / most))  # 1.7 < 2 by eq. 9
    best = np.full(b.size, np.inf)
    for y in (height, 0.6 * height, 0.35 * height):
        growth = (0.5 + rate * rate) * y * y
        grown = np.full(b.size, growth - 2 * math.pi * y / step.h + math.log(2.01))
        if b[0] < 0:
            steep = b[:, None] * np.log1p(-0.5 * y * y * bend)[None, :]
            grown += np.log((e * np.exp(np.minimum(steep, 600.0))).sum(axis=1) / e.sum(axis=1))
        best = np.minimum(best, grown)
    slack = np.where(best < -0.1, -np.log1p(-np.exp(np.minimum(best, -0.1))), np.inf)
    return np.maximum(slack, _SLACK)


def numerator_mass(
    step: Step, part: slice, *, remove: bool, log_weight: Floats | None = None
) -> float:
    """An upper sum of the numerator's weighted mass on a part of the grid, one step.

    Each end counts as a whole point. A part of a single point holds nothing.
    """
    if part.stop - part.start < 2:
        return 0.0
    x = step.x[part]
    level = -0.5 * x * x + (step.ell[part] if remove else 0.0)
    if log_weight is not None:
        level = level + log_weight
    return float(np.exp(level).sum()) * step.h * math.exp(-LOG_SQRT_2PI) * _MASS_SLACK


def chernoff(side: Side, domains: tuple[slice, ...], a: Floats, smoothing: float = 0.0) -> Chernoff:
    """Chernoff bounds at the orders ``a`` for the measure kept on ``domains`` (one per step).

    A tilted integrand may end long before the mass does: f_0 e^-41 below its top still is a mass of
    e^-41 e^{-c l}, which can be more than all of a tiny delta. So the mass between the end of a
    domain and the end of what was kept is part of the result.
    """
    log_moment = 0.5 * (side.mu2 + smoothing) * a * (a + 1)
    b = 1.0 + a if side.remove else -a
    beyond = 0.0
    for step, domain in zip(side.steps, domains, strict=True):
        log_moment = log_moment + step.count * log_upper_sum(step, domain, b)
        for part in (
            slice(step.inner.start, domain.start + 1),
            slice(domain.stop - 1, step.inner.stop),
        ):
            beyond += step.count * numerator_mass(step, part, remove=side.remove)
    return Chernoff(a, rounded_up(log_moment) + log_kappa(a), beyond=beyond)
