r"""One direction of the steps on a coarse real grid: log-moments, saddle points, upper sums.

Legend: *remove* is H(Q^T, P^T) with M(s) = F(1+s); *add* is H(P^T, Q^T) with M(s) = F(-s);
F(b) = E_P[e^{b l}]; K = log M. ``b`` below is 1 + c or -c.
Everything dropped is dropped from the numerator measure (Q for remove, P for add), so
H(kept) <= H(truth) <= H(kept) + T * dropped mass (docs, eq. 4).

Saddle points only steer the certified sums (docs, Section 3). Chernoff bounds are certified (docs,
eq. 7 and 8): they bound what the sum along Re s = c has too much (its excess), and delta itself
where no sum is possible. Each order a gives a bound, so no order can be a wrong choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_ndtr, logsumexp

from userdp.accounting.contour.privacy_loss import Floats, Pair, ShiftLaw, losses

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)

# On the side where nothing is dropped on purpose, x ends where a normal tail is below 2e-20 of all
# mass; it is the light side of the tilted integrand too, since l falls there.
_LEFT = 9.2

# Beyond the cut the grid goes on for 9 deviations: a line's domain may have to end there (`line`).
_BEYOND = 9.0

# Mass below what a double holds: components under e^-5000 (`privacy_loss`;
# T 1e7 e^-5000 < 1e-2100), and whatever else underflows. No upper bound goes below it.
UNDERFLOW = 1e-300
_MOST_POINTS = 60_000
_MOST_TERMS = 4e7  # points times components: about two seconds


class GridTooLarge(Exception):
    """The x-range of a step would need too many points; another method must answer."""


@dataclass(frozen=True, slots=True)
class Side:
    """T equal steps seen from one direction: the kept law and a coarse real grid of one step."""

    remove: bool
    steps: int
    law: ShiftLaw
    x: Floats
    h: float
    ell: Floats
    slope: Floats
    curvature: Floats
    bend: Floats  # bounds l'' half a grid step around each point
    inner: slice  # the part of the grid that must be kept
    dropped: float  # numerator mass dropped in all steps, cut at the ends of ``inner`` included

    def b(self, c: Any) -> Any:
        """The exponent of e^l under P that belongs to the abscissa c; of numbers or arrays."""
        return 1.0 + c if self.remove else -c

    def moments(self, c: float) -> tuple[float, float, float]:
        """(K, K', K'') of all steps at c, from the coarse real grid (not certified)."""
        ell, x = self.ell[self.inner], self.x[self.inner]
        g = self.b(c) * ell - 0.5 * x * x
        top = float(g.max())
        weight = np.exp(g - top)
        total = float(weight.sum())
        mean = float(weight @ ell) / total
        variance = float(weight @ (ell - mean) ** 2) / total
        log_m = top + math.log(total * self.h) - LOG_SQRT_2PI
        loss = mean if self.remove else -mean
        return self.steps * log_m, self.steps * loss, self.steps * variance


def strip_height(side: Side, domain: slice) -> float:
    """A height Y with Y^2 l'' <= 1.7 < 2 on the domain: l is analytic up to it (docs, eq. 9).

    1.7 leaves room for l'' between the grid points, which `is_sound` asks on the finer grid. Beyond
    3 the Gaussian's own growth e^{Y^2/2} costs more than a higher strip gains.
    """
    bend = float(side.curvature[domain].max())
    return min(3.0, math.sqrt(1.7 / bend)) if bend > 0 else 3.0


def _grid_step(a: Floats) -> float:
    """h_1 of eq. 8: fine enough for a unit Gaussian and for the strip of height pi/gap."""
    gap = float(np.diff(a).max()) if a.size > 1 else 0.0
    return min(0.3, 0.9 / gap) if gap > 0 else 0.3


def make_side(
    pair: Pair, *, remove: bool, mass_budget: float, reach_c: float | None = None
) -> Side:
    """One direction of ``pair``; at most ``mass_budget`` of the numerator's mass is dropped.

    With ``reach_c``, x is not cut where its mass ends but where the tilted integrand of every
    c <= ``reach_c`` has decayed (components of tiny mass are still dropped).

    Raises:
        GridTooLarge: the x-range would need too many points.
    """
    # numerator mass that one step may drop on each of two occasions; what is raised is counted too
    budget = max(mass_budget / (2 * pair.steps), UNDERFLOW)
    law, dropped = pair.law, budget
    reach = math.sqrt(2 * math.log(0.5 / budget))  # Phi(-reach) <= budget
    if remove:
        p = np.exp(law.w)
        tail = np.cumsum(p[::-1])[::-1]  # tail[k] = sum_{j >= k} p_j
        keep = max(int((tail > budget).sum()), 1)
        missing = float(tail[keep]) if keep < p.size else 0.0
        law = ShiftLaw(law.a[:keep], law.w[:keep], missing)
        dropped += missing
        head = np.cumsum(p[:keep])
        # nothing of Q lies left of the first component that is not negligible, less a normal tail
        low = float(law.a[int(np.searchsorted(head, 1e-20))]) - _LEFT
        high = float(law.a[-1]) + reach
        # the first of 24 places beyond which Q has less than the budget
        candidates = np.linspace(max(low + 1, high - reach - float(law.a[-1])), high, 24)
        log_tails = logsumexp(law.w + log_ndtr(law.a - candidates[:, None]), axis=1)
        ok = log_tails <= math.log(budget)
        must = float(candidates[int(ok.argmax())]) if ok.any() else high
        ends = (low, must + _BEYOND)
        if reach_c is not None:
            # e^{(1+c)l - x^2/2} has its last peak near (1+c) a_max, and has fallen 9.5 beyond it
            ends = (low, max(must, (1.0 + reach_c) * float(law.a[-1]) + 9.5))
            must = ends[1] + 1.0
    else:
        must, ends = -reach, (-reach - _BEYOND, _LEFT)
    h = _grid_step(law.a)
    _refuse_too_large((ends[1] - ends[0]) / h, law)
    x = np.arange(ends[0], ends[1] + h, h)
    if remove:
        inner = slice(0, min(int(np.searchsorted(x, must)) + 1, x.size))
    else:
        inner = slice(max(int(np.searchsorted(x, must)) - 1, 0), x.size)
    dropped = pair.steps * dropped + UNDERFLOW
    return Side(remove, pair.steps, law, x, h, *_on_axis(law, x, h), inner, dropped)


def _refuse_too_large(points: float, law: ShiftLaw) -> None:
    if points > _MOST_POINTS or points * law.a.size > _MOST_TERMS:
        raise GridTooLarge


def _on_axis(law: ShiftLaw, x: Floats, h: float) -> tuple[Floats, Floats, Floats, Floats]:
    """l, l', l'' on the grid, and the bound of l'' half a step around each point."""
    ell, slope, curvature = losses(law, x, np.zeros(1))
    bend = losses(law, x, np.zeros(0), 0.5 * h)[2]  # no heights: only the bound is wanted
    return np.ascontiguousarray(ell[0].real), slope, curvature, bend


def on_finer_grid(side: Side, h: float) -> Side:
    """The same side, its grid points at most ``h`` apart; every old point is one of the new ones.

    Raises:
        GridTooLarge: the x-range would need too many points.
    """
    parts = math.ceil(side.h / h)
    if parts <= 1:
        return side
    law, fine = side.law, side.h / parts
    points = (side.x.size - 1) * parts + 1
    _refuse_too_large(points, law)
    x = side.x[0] + np.arange(points) * fine
    inner = slice(side.inner.start * parts, (side.inner.stop - 1) * parts + 1)
    on_axis = _on_axis(law, x, fine)
    return Side(side.remove, side.steps, law, x, fine, *on_axis, inner, side.dropped)


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


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight chi(x) = erfc(-kappa (x - x_s))/2 or 1 - chi on a domain: its logarithm and kappa.

    |erfc(u + iv)| <= e^{v^2} erfc(u), by the path from u + iv to the right. So at height y a weight
    is at most e^{(kappa y)^2} of what it is on the axis.
    """

    log: Floats
    rate: float


def log_upper_sum(side: Side, domain: slice, b: Floats, weight: Weight | None = None) -> Floats:
    """log of an upper sum of the integral of weight e^{b l} phi over a domain (docs, eq. 8).

    An order about which nothing is proven gets infinity, and so is never the least bound.

    Args:
        side: the steps, of which one is summed, on its coarse grid.
        domain: the part of the grid.
        b: the exponents, (orders,).
        weight: on the domain; None for the weight 1.
    """
    log_sum, slack = _sum_and_slack(side, domain, b, weight)
    return log_sum + slack


def log_upper_share(side: Side, domain: slice, b: Floats, weight: Weight) -> Floats:
    """log of an upper bound of the weighted integral's share of the one with the weight 1.

    Both sums count the ends in excess, which only brings their ratio nearer to 1.
    """
    part, slack = _sum_and_slack(side, domain, b, weight)
    whole, its_slack = _sum_and_slack(side, domain, b, None)
    out: Floats = np.minimum(part - whole + slack + its_slack, 0.0)
    return out


def _sum_and_slack(
    side: Side, domain: slice, b: Floats, weight: Weight | None
) -> tuple[Floats, Floats]:
    ell, x = side.ell[domain], side.x[domain]
    g = b[:, None] * ell[None, :] - 0.5 * (x * x)[None, :]
    if weight is not None:
        g += weight.log[None, :]
    top = g.max(axis=1)
    e = np.exp(g - top[:, None])
    # each end counts twice: a cut in the middle of a monotone integrand leaves at most f(last) h
    total = (e.sum(axis=1) + e[:, 0] + e[:, -1]) * side.h
    slack = _quadrature_slack(side, domain, b, e, 0.0 if weight is None else weight.rate)
    return top + np.log(total) - LOG_SQRT_2PI, slack


def _quadrature_slack(side: Side, domain: slice, b: Floats, e: Floats, rate: float) -> Floats:
    """log of what the coarse rule may miss inside the domain, for sums of ``e``; at least 1e-6.

    The error is at most 2 growth / (e^{2 pi Y/h} - 1) of the integral for every Y of the strip,
    growth = e^{Y^2/2 + (rate Y)^2}, and for b < 0 also the weighted mean of (1 - Y^2 l''/2)^b.
    Infinity where that is nothing.
    """
    bend = side.bend[domain]
    most = float(bend.max())
    # beyond, the growth of the Gaussian and of the weight outweighs the decay of the error
    height = 2 * math.pi / (side.h * (1 + 2 * rate * rate))
    if most > 0:
        height = min(height, math.sqrt(1.7 / most))  # 1.7 < 2 by eq. 9
    best = np.full(b.size, np.inf)
    for y in (height, 0.6 * height, 0.35 * height):
        growth = (0.5 + rate * rate) * y * y
        grown = np.full(b.size, growth - 2 * math.pi * y / side.h + math.log(2.01))
        if b[0] < 0:
            steep = b[:, None] * np.log1p(-0.5 * y * y * bend)[None, :]
            grown += np.log((e * np.exp(np.minimum(steep, 600.0))).sum(axis=1) / e.sum(axis=1))
        best = np.minimum(best, grown)
    slack = np.where(best < -0.1, -np.log1p(-np.exp(np.minimum(best, -0.1))), np.inf)
    return np.maximum(slack, _SLACK)


def log_moment(
    side: Side, a: Floats, domain: slice, weight: Weight | None = None, smoothing: float = 0.0
) -> Floats:
    """log of an upper bound of M(a)^T, weighted, on a domain of each step, at the orders ``a``.

    Raised by more than the float rounding of all steps.
    """
    total = 0.5 * smoothing * a * (a + 1)
    total = total + side.steps * log_upper_sum(side, domain, side.b(a), weight)
    out: Floats = total + 1e-9 * np.abs(total)
    return out


def numerator_mass(side: Side, part: slice, log_weight: Floats | None = None) -> float:
    """An upper sum of the numerator's weighted mass on a part of the grid, all steps together.

    Each end counts as a whole point. A part of a single point holds nothing.
    """
    if part.stop - part.start < 2:
        return 0.0
    x = side.x[part]
    level = -0.5 * x * x + (side.ell[part] if side.remove else 0.0)
    if log_weight is not None:
        level = level + log_weight
    mass = float(np.exp(level).sum()) * side.h * math.exp(-LOG_SQRT_2PI) * _MASS_SLACK
    return side.steps * mass


def chernoff(side: Side, domain: slice, a: Floats, smoothing: float = 0.0) -> Chernoff:
    """Chernoff bounds at the orders ``a`` for the measure kept on ``domain`` in each step.

    A tilted integrand may end long before the mass does: f_0 e^-41 below its top still is a mass of
    e^-41 e^{-c l}, which can be more than all of a tiny delta. So the mass between the end of a
    domain and the end of what was kept is part of the result.
    """
    left = slice(side.inner.start, domain.start + 1)
    right = slice(domain.stop - 1, side.inner.stop)
    beyond = numerator_mass(side, left) + numerator_mass(side, right)
    value = log_moment(side, a, domain, smoothing=smoothing) + log_kappa(a)
    return Chernoff(a, value, beyond=beyond)


TURN = 3.2  # kappa Y: |chi| grows by at most about e^{(kappa Y)^2} on the strip


@dataclass(frozen=True, slots=True)
class Split:
    """One step's weight chi: ``place`` x_s, ``rate`` kappa; its values on the grid in ``domain``.

    ``chi`` is the weight of the large part, ``not_chi`` of the small one.
    """

    place: float
    rate: float
    domain: slice
    chi: Weight
    not_chi: Weight


def split_at(side: Side, place: float, rate: float, stop: int) -> Split:
    """The weight with these parameters on the first ``stop`` points of the grid.

    erfc(-t)/2 = Phi(t sqrt 2), whose logarithm does not underflow.
    """
    t = math.sqrt(2) * rate * (side.x[:stop] - place)
    chi, not_chi = Weight(log_ndtr(t), rate), Weight(log_ndtr(-t), rate)
    return Split(place, rate, slice(0, stop), chi, not_chi)
