r"""The trapezoidal sum along Re s = c, its certified excess, truncation and rounding.

Legend: Lambda = 2 pi / h; S = (h/2pi) sum_j M(s_j)^T e^{-s_j eps} / (s_j (s_j + 1)), s_j = c + ijh.
S = sum_m delta(eps + m Lambda) e^{c m Lambda} >= delta(eps) (docs, eq. 6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from userdp.accounting.contour.coarse_grid import Chernoff, Side
from userdp.accounting.contour.moment_function import EPS, Line, Part, rounding, widened
from userdp.accounting.contour.privacy_loss import Complexes, Floats, log1p


@dataclass(frozen=True, slots=True)
class Contour:
    """Where the sum has its nodes: s_j = c + iu_j with u_j = jh, for j < n."""

    c: float
    h: float
    n: int

    @property
    def u(self) -> Floats:
        out: Floats = self.h * np.arange(self.n, dtype=np.float64)
        return out

    @property
    def end(self) -> float:
        """U, the first node left out."""
        return self.n * self.h

    def _tables(self, y: float = 1.0) -> tuple[Floats, Floats]:
        """u_q y and u_{Jr} y: with j = Jr + q, q < J, two short tables give all nodes."""
        inner = max(1, math.isqrt(self.n))
        outer = -(-self.n // inner)
        short: Floats = self.h * y * np.arange(inner, dtype=np.float64)
        long: Floats = self.h * inner * y * np.arange(outer, dtype=np.float64)
        return short, long

    def departures(self, weights: Complexes, ell: Complexes) -> Complexes:
        """sum_m w_m (e^{i u_j l_m} - 1) at every node, by one matrix product.

        e^{(A+B)} - 1 = e^A (e^B - 1) + (e^A - 1), so nothing is subtracted from 1.
        """
        short, long = self._tables()
        fine, coarse = np.expm1(1j * np.outer(ell, short)), np.expm1(1j * np.outer(long, ell))
        lone = coarse @ weights
        out: Complexes = ((coarse + 1) * weights[None, :]) @ fine + lone[:, None]
        return out.reshape(-1)[: self.n]

    def sums(self, weights: Complexes, ell: Complexes) -> Complexes:
        """sum_m w_m e^{i u_j l_m} at every node."""
        short, long = self._tables()
        fine, coarse = np.exp(1j * np.outer(ell, short)), np.exp(1j * np.outer(long, ell))
        out: Complexes = (coarse * weights[None, :]) @ fine
        return out.reshape(-1)[: self.n]

    def turns(self, epsilon: float) -> Complexes:
        """e^{-i u_j epsilon} at every node: 4 ulps and 2 u epsilon ulps of phase."""
        short, long = self._tables(epsilon)
        return np.outer(np.exp(-1j * long), np.exp(-1j * short)).reshape(-1)[: self.n]


@dataclass(frozen=True, slots=True)
class Nodes:
    """M(s_j)^T at the nodes, ready for any epsilon near the saddle's.

    ``log_m`` = K(c) of all steps; ``value`` is relative to it; ``slop`` bounds the
    rounding and quadrature error of each value, on the same scale.
    """

    side: Side
    at: Contour
    value: Complexes
    slop: Floats
    log_m: float
    bounds: Chernoff  # of the excess
    log_tail: float  # log of a bound on |M(s)/M(c)|^T beyond the last node
    epsilon: float  # what the nodes were planned for
    smoothing: float = 0.0  # v: variance of the extra Gaussian, 0 for none
    rest: Chernoff | Nodes | None = None  # bounds what the nodes leave out (docs, Section 5)
    leak: float = 0.0  # and a further mass left out
    payoff: Complexes = field(init=False, repr=False)  # value / (s (s+1)), half of it at u = 0
    density: Complexes = field(init=False, repr=False)  # value / (s+1), half of it at u = 0
    error: float = field(init=False, repr=False)  # sum of 2 slop / |s (s+1)|

    def __post_init__(self) -> None:
        s = self.at.c + 1j * self.at.u
        ends = np.ones(s.size)
        ends[0] = 0.5
        density = ends * self.value / (s + 1)
        object.__setattr__(self, "density", density)
        object.__setattr__(self, "payoff", density / s)
        object.__setattr__(self, "error", 2 * float((ends * self.slop) @ (1 / np.abs(s * (s + 1)))))


@dataclass(frozen=True, slots=True)
class Power:
    """M(s_j) of one step relative to e^log_m, and its T-th power.

    The error of the power is at most |power| (e^growth - 1): see `widened`.
    """

    value: Complexes  # of one step
    error: Floats  # bounds of one step's errors
    log: Complexes  # of the T-th power, smoothing included
    growth: Floats


def power_at_nodes(
    side: Side, part: Part, ell: Complexes, at: Contour, smoothing: float = 0.0
) -> Power:
    """M(s_j)^T at the nodes.

    M is M(c) + sum w (e^{iul} - 1), so that M/M(c) - 1 keeps its relative accuracy where it is
    small, and T log M loses nothing for large T (docs, Section 3.4).
    """
    u = at.u
    away = at.departures(part.weights, ell) / part.value
    value = part.value * (1 + away)
    error = part.defect + rounding(part.weights, ell, at.c, u)
    log = side.steps * (math.log(part.value) + log1p(away))
    growth = side.steps * np.log1p(error / np.maximum(np.abs(value), 1e-300))
    if not side.remove:
        log = np.conj(log)  # lines are made for F(b + iu), u >= 0; add asks F(-c - iu)
    log = log + smoothing * (-0.5 * u * u + 1j * u * (at.c + 0.5))
    growth += EPS * (64.0 + 8 * np.abs(log))
    return Power(value, error, log, growth)


def compute_nodes(
    side: Side,
    line: Line,
    at: Contour,
    bounds: Chernoff,
    log_tail: float,
    epsilon: float,
    smoothing: float = 0.0,
) -> Nodes:
    """M(s_j)^T at the nodes, ready to be summed."""
    power = power_at_nodes(side, line.whole, line.ell, at, smoothing)
    value, slop = np.exp(power.log), widened(power.log.real, power.growth)
    log_m = 0.5 * smoothing * at.c * (at.c + 1) + side.steps * line.log_m
    return Nodes(side, at, value, slop, log_m, bounds, log_tail, epsilon, smoothing)


@dataclass(frozen=True, slots=True)
class Sum:
    """delta(epsilon) of what the nodes sum, in units of exp(log_scale): lower <= delta <= upper.

    The mass that was dropped, and what `Nodes.rest` bounds without a sum, are not in it.
    """

    lower: float
    upper: float
    middle: float
    slope: float  # d middle / d epsilon, negative
    log_scale: float


def estimate(nodes: Nodes, epsilon: float) -> tuple[float, float, float]:
    """(sum, its slope in epsilon, log of their scale), uncertified: for root finding."""
    total, slope, log_scale, _ = _bare_sum(nodes, epsilon)
    if isinstance(nodes.rest, Nodes):
        other, other_slope, other_scale = estimate(nodes.rest, epsilon)
        factor = math.exp(min(other_scale - log_scale, 600.0))
        return total + other * factor, slope + other_slope * factor, log_scale
    return total, slope, log_scale


def _bare_sum(nodes: Nodes, epsilon: float) -> tuple[float, float, float, Complexes]:
    """(S, dS/d epsilon, log of their scale, e^{-iu epsilon}): the nodes' own sum, no bounds."""
    turn, scale = nodes.at.turns(epsilon), nodes.at.h / math.pi
    total = scale * float((nodes.payoff @ turn).real)
    slope = -scale * float((nodes.density @ turn).real)
    return total, slope, nodes.log_m - nodes.at.c * epsilon, turn


def _grown(exponent: float) -> float:
    """e^exponent as an upper bound: infinite where no double holds it."""
    return math.exp(exponent) if exponent < 700.0 else math.inf


def evaluate(nodes: Nodes, epsilon: float) -> Sum:
    """The certified sum at ``epsilon`` (docs, eq. 14), scaled by exp(log_scale)."""
    c, h, n, last = nodes.at.c, nodes.at.h, nodes.at.n, nodes.at.end
    total, slope, log_scale, turn = _bare_sum(nodes, epsilon)
    scale = h / (2 * math.pi)
    # the phase u epsilon of each term is rounded; 24 ulps for the two tables and their products
    size = np.abs(nodes.payoff)
    phase = abs(epsilon) * h * float(size @ np.arange(n, dtype=np.float64))
    error = scale * (nodes.error + 2 * EPS * (8 * phase + 24 * float(size.sum())))
    # a factor common to all nodes: K(c) T, with 32 ulps of M(c) in each step
    exponent = abs(nodes.log_m) + c * abs(epsilon) + 8
    error += abs(total) * EPS * (8 * exponent + 32.0 * nodes.side.steps)
    error += _grown(nodes.log_tail) * (1 / last + h / last**2) / math.pi  # docs, eq. 13
    log_excess = nodes.bounds.log_excess(c, epsilon, np.array([2 * math.pi / h]))
    excess = _grown(float(log_excess[0]) - log_scale)
    # aliasing only adds to the sum (docs, eq. 6): its bound is taken off the lower end alone
    lower, upper = total - error - excess, total + error
    if nodes.smoothing > 0:  # docs, eq. 18: what the extra Gaussian may have added
        v = nodes.smoothing
        kernel = nodes.value * turn
        density = scale * (2 * float(kernel.real.sum()) - float(kernel[0].real))
        slop = nodes.slop + np.abs(kernel) * (EPS * (8 * nodes.at.u * abs(epsilon) + 16))
        tail = _grown(nodes.log_tail) * (1 / (v * last) + h) / math.pi
        density_error = 2 * scale * float(slop.sum()) + tail
        lower -= v * _grown(v / 8) * (max(density, 0.0) + density_error)
    if isinstance(nodes.rest, Nodes):
        other = evaluate(nodes.rest, epsilon)
        factor = math.exp(min(other.log_scale - log_scale, 600.0))
        lower += max(other.lower, 0.0) * factor
        upper += other.upper * factor
        total, slope = total + other.middle * factor, slope + other.slope * factor
    return Sum(lower, upper, total, slope, log_scale)
