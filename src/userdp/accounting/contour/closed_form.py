r"""Certified bounds, and the closed form of a pure Gaussian mechanism.

Legend: R(z) = e^{z^2/2} int_z^inf e^{-t^2/2} dt = sqrt(pi/2) erfcx(z/sqrt 2), the Mills ratio;
phi and Phi_c are the standard normal density and upper tail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx

from userdp.accounting.certified_search import bisect
from userdp.accounting.contour.coarse_grid import LOG_SQRT_2PI
from userdp.core.errors import FailureError

_ROUNDING = 1e-12  # relative; brackets carry their own allowances, so this is generous


@dataclass(frozen=True, slots=True)
class Bounds:
    """lower <= truth <= upper."""

    lower: float
    upper: float

    def meet(self, other: Bounds) -> Bounds:
        """The intersection of two certified brackets.

        Raises:
            FailureError: there is none. Then one of the brackets is wrong, and no answer is better
                than either. Where they miss each other by rounding alone, the gap is the answer.
        """
        lower, upper = max(self.lower, other.lower), min(self.upper, other.upper)
        if lower - upper > _ROUNDING * lower:
            raise FailureError(
                f"two certified brackets exclude each other: [{self.lower!r}, {self.upper!r}] and "
                f"[{other.lower!r}, {other.upper!r}]; one of them is wrong, so none is reported",
                hint="use another accountant for this setting, and report the setting as a bug",
            )
        return Bounds(min(lower, upper), max(lower, upper))

    def join(self, other: Bounds) -> Bounds:
        """Certified bounds of the larger of two quantities."""
        return Bounds(max(self.lower, other.lower), max(self.upper, other.upper))


_SPECIAL = 4e-15  # stated relative error of erfcx in the ranges used
LEAST_DELTA = 1e-289  # below, delta(eps) is only said to be below it (docs, Section 8)


def _log_mills(z: float) -> float:
    """log R(z)."""
    if z > -25:
        return math.log(math.sqrt(math.pi / 2) * float(erfcx(z / math.sqrt(2))))
    return 0.5 * z * z + LOG_SQRT_2PI  # R(z) = sqrt(2 pi) e^{z^2/2} (1 - tiny)


def gaussian_delta(mu: float, epsilon: float) -> Bounds:
    """delta(epsilon) of N(mu, 1) against N(0, 1); both directions are equal.

    delta = Phi_c(z) - e^eps Phi_c(z + mu) = phi(z) (R(z) - R(z + mu)), z = eps/mu - mu/2, because
    e^eps phi(z + mu) = phi(z) (Balle & Wang 2018, Thm 8). docs, eq. 16.
    """
    z = epsilon / mu - 0.5 * mu
    if z > -20:  # below, Phi(z) < 1e-88 and delta is 1 to rounding
        first, second = math.exp(_log_mills(z)), math.exp(_log_mills(z + mu))
        gap = first - second
        error = _SPECIAL * (first + second)
        # z itself is rounded: d log phi = z dz, and R changes by at most (1 + |z| R) dz
        shift = 2.0**-52 * (abs(epsilon / mu) + mu)
        relative = shift * (abs(z) + 1) * 2 + 1e-15
        if gap < 1e-3 * first:  # R(z) - R(z+mu) = int (1 - t R(t)) dt, in mu, without cancelling
            gap_low, gap_high = _mills_gap(z, mu)
        else:
            gap_low, gap_high = gap - error - shift * first, gap + error + shift * first
        log_phi = -0.5 * z * z - LOG_SQRT_2PI
        relative += 2.0**-51 * z * z
        if log_phi < -740:
            return Bounds(0.0, 1e-300)
        phi = math.exp(log_phi)
        low, high = phi * gap_low * (1 - relative), phi * gap_high * (1 + relative)
    else:
        low, high = 1 - 1e-15, 1.0
    high = min(high, 1.0)
    return Bounds(min(max(low, 0.0), high), high)


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def _mills_gap(z: float, mu: float) -> tuple[float, float]:
    """R(z) - R(z + mu) for small mu, as int over t of g(t) = 1 - t R(t), bounded both ways.

    g is positive and falls, so the integral lies between mu g(z + mu) and mu g(z); the 12-point
    rule is exact to rounding for mu < 1; g loses about z^2 ulps for large z.
    """
    t = z + 0.5 * mu * (1 + _NODES)
    g = 1 - t * math.sqrt(math.pi / 2) * erfcx(t / math.sqrt(2))
    value = 0.5 * mu * float(_WEIGHTS @ g)
    size = 1 + abs(z)
    error = _SPECIAL * mu * (size + 1)
    return max(value - error, 0.0), value + error


def gaussian_epsilon(mu: float, delta: float) -> Bounds:
    """The epsilon of N(mu, 1) against N(0, 1) at ``delta``: bisection on certified bounds."""
    if gaussian_delta(mu, 0.0).upper <= delta:
        return Bounds(0.0, 0.0)
    # delta(eps) <= Phi_c(z) <= e^{-z^2/2}/2, z = eps/mu - mu/2 >= 0, solved for eps: an upper end
    high = 0.5 * mu * mu + mu * math.sqrt(-2 * math.log(delta))
    if delta < LEAST_DELTA:
        return Bounds(0.0, high * (1 + 1e-12))
    high += mu  # so far that the certified upper bound is below delta too
    lower = bisect(lambda e: gaussian_delta(mu, e).lower >= delta, high, 0.0, relative=1e-15)
    upper = bisect(lambda e: gaussian_delta(mu, e).upper <= delta, 0.0, high, relative=1e-15)
    return Bounds(lower, upper)
