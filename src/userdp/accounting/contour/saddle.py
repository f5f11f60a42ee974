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


def log_estimate(side: Side, c: float, epsilon: float) -> tuple[float, float]:
    """(log of the saddle-point estimate of delta(epsilon), curvature of the exponent at c)."""
    k0, _, k2 = side.moments(c)
    second = k2 + 1 / (c * c) + 1 / ((c + 1) * (c + 1))
    return k0 - c * epsilon + log_payoff(c, second), second


def saddle_at_epsilon(side: Side, epsilon: float, start: float = 1.0) -> Saddle | None:
    """The c with K'(c) = epsilon + 1/c + 1/(1+c); None where there is none (delta is 0 or tiny)."""
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
            new = 0.5 * (low + high) if low > _LOG_C[0] and high < _LOG_C[1] else t + move
            new = min(max(new, low), high)
        if abs(new - t) < 1e-3:
            t = new
            break
        t = new
    if t > _LOG_C[1] - 0.1:
        return None
    c = math.exp(t)
    value, second = log_estimate(side, c, epsilon)
    return Saddle(c, epsilon, value, second)


def saddle_at_delta(side: Side, log_delta: float, least: Saddle) -> Saddle:
    """The saddle whose estimated delta is ``log_delta``; ``least`` is the one at epsilon = 0."""

    def at(t: float) -> Saddle:
        c = math.exp(t)
        _, k1, _ = side.moments(c)
        epsilon = k1 - 1 / c - 1 / (1 + c)
        value, second = log_estimate(side, c, epsilon)
        return Saddle(c, epsilon, value, second)

    low = math.log(least.c)
    if least.log_delta <= log_delta:
        return least
    left, jump, best = least, 0.7, least
    high = low
    while high < _LOG_C[1]:
        high += jump
        jump *= 1.6
        best = at(high)
        if best.log_delta <= log_delta:
            break
        low, left = high, best
    right = best
    for _ in range(40):
        span = left.log_delta - right.log_delta
        share = (left.log_delta - log_delta) / span if span > 0 else 0.5
        t = low + (high - low) * min(max(share, 0.1), 0.9)
        best = at(t)
        if abs(best.log_delta - log_delta) < 0.02 or high - low < 1e-6:
            break
        if best.log_delta > log_delta:
            low, left = t, best
        else:
            high, right = t, best
    return best
