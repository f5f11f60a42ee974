r"""The trapezoidal sum along Re s = c, its certified excess, truncation and rounding.

Legend: Lambda = 2 pi / h; S = (h/2pi) sum_j M(s_j)^T e^{-s_j eps} / (s_j (s_j + 1)), s_j = c + ijh.
S = sum_m delta(eps + m Lambda) e^{c m Lambda} >= delta(eps) (docs, eq. 6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from userdp.accounting.contour.line import EPS, Line
from userdp.accounting.contour.losses import Complexes, Floats
from userdp.accounting.contour.precise import departures, log1p
from userdp.accounting.contour.rounding import rounding, widened
from userdp.accounting.contour.side import LOG_SQRT_2PI, Side, Step

RATIOS = np.concatenate([np.linspace(0.02, 0.98, 33), 1 + np.geomspace(0.01, 60.0, 40)])


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
        zero = self.log_mass - c * period - np.log1p(-np.exp(-c * period) * (1 - 1e-12))
        right = e[:, self.a > c].min(axis=1)
        out: Floats = np.logaddexp(np.minimum(left, zero), right)
        return out


def log_kappa(a: Floats) -> Floats:
    """log of kappa(a) = a^a / (1+a)^(1+a) = max over y > 0 of (1 - e^-y) e^{-ay}."""
    out: Floats = a * np.log(a) - (1 + a) * np.log1p(a)
    # a log a - a log(1+a) cancels for large a: -a log1p(1/a) - log1p(a)
    return np.where(a > 1, -a * np.log1p(1 / np.maximum(a, 1)) - np.log1p(a), out)


def quadrature_slack(step: Step, domain: slice, b: Floats, e: Floats) -> Floats:
    """log of what the coarse rule may miss inside the domain, for sums of ``e`` (docs, eq. 8).

    The error is at most 2 growth / (e^{2 pi Y/h} - 1) of the integral for every Y of the strip,
    growth = e^{Y^2/2}, and for b < 0 also the weighted mean of (1 - Y^2 l''/2)^b.
    """
    bend = step.bend[domain]
    most = float(bend.max())
    height = min(2 * math.pi / step.h, math.sqrt(1.7 / most)) if most > 0 else 2 * math.pi / step.h
    best = np.full(b.size, np.inf)
    for y in (height, 0.6 * height, 0.35 * height):
        log_error = 0.5 * y * y - 2 * math.pi * y / step.h + math.log(2.01)
        grown = np.full(b.size, log_error)
        if b[0] < 0:
            steep = b[:, None] * np.log1p(-0.5 * y * y * bend)[None, :]
            grown += np.log((e * np.exp(np.minimum(steep, 600.0))).sum(axis=1) / e.sum(axis=1))
        best = np.minimum(best, grown)
    out: Floats = np.where(best < -0.1, -np.log1p(-np.exp(np.minimum(best, -0.1))), np.inf)
    return out


def chernoff(side: Side, domains: tuple[slice, ...], a: Floats, smoothing: float = 0.0) -> Chernoff:
    """Chernoff bounds at the orders ``a`` for the measure kept on ``domains`` (one per step).

    K(a) is a coarse upper sum, rounded up by at least 1e-6 per step (docs, eq. 8); where nothing
    is proven about an order, its bound is infinite.
    """
    k = 0.5 * (side.mu2 + smoothing) * a * (a + 1)
    b = 1.0 + a if side.remove else -a
    beyond = math.fsum(
        step.count * _mass_beyond(step, domain, remove=side.remove)
        for step, domain in zip(side.steps, domains, strict=True)
    )
    for step, domain in zip(side.steps, domains, strict=True):
        ell, x = step.ell[domain], step.x[domain]
        g = b[:, None] * ell[None, :] - 0.5 * (x * x)[None, :]
        top = g.max(axis=1)
        e = np.exp(g - top[:, None])
        total = (e.sum(axis=1) + e[:, 0] + e[:, -1]) * step.h
        slack = np.maximum(quadrature_slack(step, domain, b, e), 1e-6)
        k = k + step.count * (top + np.log(total) - LOG_SQRT_2PI + slack)
    return Chernoff(a, k + 1e-9 * np.abs(k) + log_kappa(a), beyond=beyond)


def _mass_beyond(step: Step, domain: slice, *, remove: bool) -> float:
    """An upper sum of the numerator's mass on ``step.inner`` outside ``domain``, one step.

    A tilted integrand may end long before the mass does: f_0 e^-41 below its top still is a mass of
    e^-41 e^{-c l}, which can be more than all of a tiny delta. Each end counts as a whole point.
    """
    total = 0.0
    for part in (
        slice(step.inner.start, domain.start + 1),
        slice(domain.stop - 1, step.inner.stop),
    ):
        if part.stop - part.start > 1:
            x = step.x[part]
            level = -0.5 * x * x + (step.ell[part] if remove else 0.0)
            total += float(np.exp(level).sum())
    return total * step.h * math.exp(-LOG_SQRT_2PI) * 1.01


@dataclass(frozen=True, slots=True)
class Nodes:
    """M(s_j)^T at the nodes, ready for any epsilon near the saddle's.

    ``log_m`` = K(c) of the composition; ``value`` is relative to it; ``slop`` bounds the
    rounding and quadrature error of each value, on the same scale.
    """

    side: Side
    c: float
    h: float
    value: Complexes
    slop: Floats
    log_m: float
    noise: float
    bounds: Chernoff
    log_tail: float  # log of a bound on |M(s)/M(c)|^T beyond the last node
    smoothing: float  # v: variance of the extra Gaussian, 0 for none
    rest: Chernoff | Nodes | None = None  # bounds what the nodes leave out (docs, Section 5)
    leak: float = 0.0  # and a further mass left out
    epsilon: float = 0.0  # what the nodes were planned for
    payoff: Complexes = field(init=False, repr=False)  # value / (s (s+1)), half of it at u = 0
    density: Complexes = field(init=False, repr=False)  # value / (s+1), half of it at u = 0
    error: float = field(init=False, repr=False)  # sum of 2 slop / |s (s+1)|

    def __post_init__(self) -> None:
        u = self.h * np.arange(self.value.size)
        s = self.c + 1j * u
        ends = np.ones(u.size)
        ends[0] = 0.5
        density = ends * self.value / (s + 1)
        object.__setattr__(self, "density", density)
        object.__setattr__(self, "payoff", density / s)
        object.__setattr__(self, "error", 2 * float((ends * self.slop) @ (1 / np.abs(s * (s + 1)))))


def compute_nodes(
    side: Side,
    lines: tuple[Line, ...],
    c: float,
    h: float,
    n: int,
    bounds: Chernoff,
    smoothing: float,
    log_tail: float,
    epsilon: float,
) -> Nodes:
    """The nodes s_j = c + ijh, j = 0 .. n-1."""
    u: Floats = h * np.arange(n, dtype=np.float64)
    mu2 = side.mu2 + smoothing
    log_value = np.zeros(n, dtype=np.complex128)
    growth = np.zeros(n)
    log_m = 0.5 * mu2 * c * (c + 1)
    noise = 0.0
    for line in lines:
        away = departures(line.weights, line.ell, h, n)
        size = np.maximum(np.abs(1 + away), 1e-300)
        log_value += line.count * log1p(np.where(away == -1, away + 1e-300, away))
        per_step = line.defect + rounding(line.weights, line.ell, c, u)
        growth += line.count * np.log1p(per_step / size)
        log_m += line.count * line.log_m
        noise += line.count * line.noise
    if not side.remove:
        log_value = np.conj(log_value)
    log_value += mu2 * (-0.5 * u * u + 1j * u * (c + 0.5))
    noise += mu2 * (c + 1)
    growth += EPS * (64.0 + 8 * np.abs(log_value))
    value, slop = np.exp(log_value), widened(log_value.real, growth)
    return Nodes(
        side, c, h, value, slop, log_m, noise, bounds, log_tail, smoothing, epsilon=epsilon
    )


@dataclass(frozen=True, slots=True)
class Sum:
    """delta(epsilon) in pieces. ``lower`` <= delta <= ``upper``, both already with dropped mass."""

    lower: float
    upper: float
    middle: float
    slope: float  # d middle / d epsilon, negative
    log_scale: float


def _turns(h: float, n: int, epsilon: float) -> Complexes:
    """e^{-i j h epsilon} for j < n, from two short tables: 4 ulps and 2 u epsilon ulps of phase."""
    inner = max(1, math.isqrt(n))
    outer = -(-n // inner)
    fine = np.exp(-1j * (h * epsilon) * np.arange(inner))
    coarse = np.exp(-1j * (h * inner * epsilon) * np.arange(outer))
    out: Complexes = (coarse[:, None] * fine[None, :]).reshape(-1)[:n]
    return out


def estimate(nodes: Nodes, epsilon: float) -> tuple[float, float, float]:
    """(sum, its slope in epsilon, log of their scale), uncertified: for root finding."""
    scale = nodes.h / math.pi
    log_scale = nodes.log_m - nodes.c * epsilon
    turn = _turns(nodes.h, nodes.value.size, epsilon)
    total, slope = (
        scale * float((nodes.payoff @ turn).real),
        -scale * float((nodes.density @ turn).real),
    )
    if isinstance(nodes.rest, Nodes):
        other, other_slope, other_scale = estimate(nodes.rest, epsilon)
        factor = math.exp(min(other_scale - log_scale, 600.0))
        return total + other * factor, slope + other_slope * factor, log_scale
    return total, slope, log_scale


def _grown(exponent: float) -> float:
    """e^exponent as an upper bound: infinite where no double holds it."""
    return math.exp(exponent) if exponent < 700.0 else math.inf


def evaluate(nodes: Nodes, epsilon: float) -> Sum:
    """The certified sum at ``epsilon`` (docs, eq. 14), scaled by exp(log_scale)."""
    c, h = nodes.c, nodes.h
    n = nodes.value.size
    turn = _turns(h, n, epsilon)
    scale = h / (2 * math.pi)
    log_scale = nodes.log_m - c * epsilon
    total = 2 * scale * float((nodes.payoff @ turn).real)
    slope = -2 * scale * float((nodes.density @ turn).real)
    size = np.abs(nodes.payoff)
    phase = abs(epsilon) * h * float(size @ np.arange(n, dtype=np.float64))
    error = scale * (nodes.error + 2 * EPS * (8 * phase + 24 * float(size.sum())))
    # a factor common to all nodes: K(c) T, with 32 ulps of M(c) in each step
    count = 32.0 * sum(step.count for step in nodes.side.steps)
    error += abs(total) * EPS * (8 * (abs(nodes.log_m) + c * abs(epsilon) + 8) + count)
    last = n * h
    # docs, eq. 13
    error += _grown(nodes.log_tail) * (1 / last + h / last**2) / math.pi
    log_excess = nodes.bounds.log_excess(c, epsilon, np.array([2 * math.pi / h]))
    excess = _grown(float(log_excess[0]) - log_scale)
    lower, upper = total - error - excess, total + error
    if nodes.smoothing > 0:
        v = nodes.smoothing
        u = h * np.arange(n)
        kernel = nodes.value * turn
        density = scale * (2 * float(kernel.real.sum()) - float(kernel[0].real))
        slop = nodes.slop + np.abs(kernel) * (EPS * (8 * u * abs(epsilon) + 16))
        density_error = (
            2 * scale * float(slop.sum()) + _grown(nodes.log_tail) * (1 / (v * last) + h) / math.pi
        )
        lower -= v * _grown(v / 8) * (max(density, 0.0) + density_error)
    if isinstance(nodes.rest, Nodes):
        other = evaluate(nodes.rest, epsilon)
        factor = math.exp(min(other.log_scale - log_scale, 600.0))
        return Sum(
            lower + max(other.lower, 0.0) * factor,
            upper + other.upper * factor,
            total + other.middle * factor,
            slope + other.slope * factor,
            log_scale,
        )
    return Sum(lower, upper, total, slope, log_scale)
