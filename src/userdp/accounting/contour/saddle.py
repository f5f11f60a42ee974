r"""Where to integrate: the saddle point c and the estimates that choose parameters.

Nothing here is certified; every number only steers the certified sums (docs, Section 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from userdp.accounting.contour.side import Side

_LOG_C = (-25.0, 35.0)


@dataclass(frozen=True, slots=True)
class Saddle:
    """An abscissa c > 0, the epsilon that belongs to it, log delta there, and K''."""

    c: float
    epsilon: float
    log_delta: float
    curvature: float


def log_payoff(c: float, curvature: float) -> float:
    """log of the estimate of delta / (M(c)^T e^{-c eps}): one Gaussian peak along Re s = c."""
    return -math.log(c) - math.log1p(c) - 0.5 * math.log(2 * math.pi * curvature)


def _saddle(side: Side, c: float, epsilon: float | None = None) -> Saddle:
    """The estimate at the abscissa c: for the epsilon whose saddle c is, or for another one."""
    k0, k1, k2 = side.moments(c)
    if epsilon is None:
        epsilon = k1 - 1 / c - 1 / (1 + c)
    curvature = k2 + 1 / (c * c) + 1 / ((c + 1) * (c + 1))
    return Saddle(c, epsilon, k0 - c * epsilon + log_payoff(c, curvature), curvature)


def saddle_at_epsilon(side: Side, epsilon: float, start: float = 1.0) -> Saddle | None:
    """The c with K'(c) = epsilon + 1/c + 1/(1+c); None where there is none (delta is 0 or tiny).

    Newton in log c, kept between the last two values that were too small and too large.
    """
    low, high = _LOG_C
    t = min(max(math.log(start), low), high)
    for _ in range(100):
        c = math.exp(t)
        _, k1, k2 = side.moments(c)
        value = k1 - epsilon - 1 / c - 1 / (1 + c)
        slope = c * (k2 + 1 / (c * c) + 1 / ((1 + c) * (1 + c)))
        low, high = (low, t) if value > 0 else (t, high)
        if high - low < 1e-3:
            break
        move = min(max(-value / slope, -2.0), 2.0)
        new = t + move
        if not low < new < high:
            known = low > _LOG_C[0] and high < _LOG_C[1]
            new = 0.5 * (low + high) if known else min(max(new, low), high)
        moved, t = abs(new - t), new
        if moved < 1e-3:
            break
    return None if t > _LOG_C[1] - 0.1 else _saddle(side, math.exp(t), epsilon)


def saddle_at_delta(side: Side, log_delta: float, least: Saddle) -> Saddle:
    """The saddle whose estimated delta is ``log_delta``; ``least`` is the one at epsilon = 0.

    Strides in log c until the estimate falls below, then interpolation in log delta; a fiftieth
    of a nat is near enough for a plan.
    """
    if least.log_delta <= log_delta:
        return least
    left, right, stride = least, least, 0.7
    low = high = math.log(least.c)
    while right.log_delta > log_delta and high < _LOG_C[1]:
        low, left = high, right
        high += stride
        stride *= 1.6
        right = _saddle(side, math.exp(high))
    best = right
    for _ in range(40):
        span = left.log_delta - right.log_delta
        share = (left.log_delta - log_delta) / span if span > 0 else 0.5
        t = low + (high - low) * min(max(share, 0.1), 0.9)
        best = _saddle(side, math.exp(t))
        if abs(best.log_delta - log_delta) < 0.02 or high - low < 1e-6:
            break
        if best.log_delta > log_delta:
            low, left = t, best
        else:
            high, right = t, best
    return best
