r"""The trapezoidal sum along Re s = c, its certified excess, truncation and rounding.

Legend: Lambda = 2 pi / h; S = (h/2pi) sum_j M(s_j)^T e^{-s_j eps} / (s_j (s_j + 1)), s_j = c + ijh.
S = sum_m delta(eps + m Lambda) e^{c m Lambda} >= delta(eps) (docs, eq. 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from userdp.accounting.contour.line import EPS, Line, Part, rounding, widened
from userdp.accounting.contour.losses import Complexes, Floats, log1p
from userdp.accounting.contour.side import Chernoff, Side


def departures(weights: Complexes, ell: Complexes, h: float, n: int) -> Complexes:
    """sum_m w_m (e^{i j h l_m} - 1) for j < n, by two short tables and one matrix product.

    With j = J r + q: e^{(A+B)} - 1 = e^A (e^B - 1) + (e^A - 1), so nothing is subtracted from 1.
    """
    inner = max(1, math.isqrt(n))
    outer = -(-n // inner)
    fine = np.expm1(1j * np.outer(ell, h * np.arange(inner)))
    coarse = np.expm1(1j * np.outer(h * inner * np.arange(outer), ell))
    lone = coarse @ weights
    out: Complexes = (((coarse + 1) * weights[None, :]) @ fine + lone[:, None]).reshape(-1)[:n]
    return out


def sums(weights: Complexes, ell: Complexes, h: float, n: int) -> Complexes:
    """sum_m w_m e^{i j h l_m} for j < n."""
    inner = max(1, math.isqrt(n))
    outer = -(-n // inner)
    fine = np.exp(1j * np.outer(ell, h * np.arange(inner)))
    coarse = np.exp(1j * np.outer(h * inner * np.arange(outer), ell))
    out: Complexes = ((coarse * weights[None, :]) @ fine).reshape(-1)[:n]
    return out


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
    bounds: Chernoff  # of the excess
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


@dataclass(frozen=True, slots=True)
class NodeValues:
    """One step's M(s_j), relative to e^log_m: values, bounds of their errors, logarithms."""

    value: Complexes
    error: Floats
    log: Complexes


def at_nodes(part: Part, ell: Complexes, c: float, h: float, n: int) -> NodeValues:
    """One step at s_j = c + ijh, j < n.

    M is M(c) + sum w (e^{iul} - 1), so that M/M(c) - 1 keeps its relative accuracy where it is
    small, and T log M loses nothing for large T (docs, Section 3.4).
    """
    u: Floats = h * np.arange(n, dtype=np.float64)
    away = departures(part.weights, ell, h, n) / part.value
    error = part.defect + rounding(part.weights, ell, c, u)
    return NodeValues(part.value * (1 + away), error, math.log(part.value) + log1p(away))


def product(
    side: Side,
    factors: Sequence[tuple[int, NodeValues]],
    c: float,
    h: float,
    n: int,
    smoothing: float = 0.0,
) -> tuple[Complexes, Floats]:
    """(log of prod M(s_j)^T relative to prod M(c)^T, its growth) for (T, M(s_j)) of each step.

    The error of the product is at most |product| (e^growth - 1): see `widened`.
    """
    u: Floats = h * np.arange(n, dtype=np.float64)
    log_value = np.zeros(n, dtype=np.complex128)
    growth = np.zeros(n)
    for count, at in factors:
        log_value += count * at.log
        growth += count * np.log1p(at.error / np.maximum(np.abs(at.value), 1e-300))
    if not side.remove:
        log_value = np.conj(log_value)  # lines are made for F(b + iu), u >= 0; add asks F(-c - iu)
    log_value += (side.mu2 + smoothing) * (-0.5 * u * u + 1j * u * (c + 0.5))
    growth += EPS * (64.0 + 8 * np.abs(log_value))
    return log_value, growth


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
    factors = [(line.count, at_nodes(line.whole, line.ell, c, h, n)) for line in lines]
    log_value, growth = product(side, factors, c, h, n, smoothing)
    log_m = 0.5 * (side.mu2 + smoothing) * c * (c + 1)
    for line in lines:
        log_m += line.count * line.log_m
    value, slop = np.exp(log_value), widened(log_value.real, growth)
    return Nodes(side, c, h, value, slop, log_m, bounds, log_tail, smoothing, epsilon=epsilon)


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
    total, slope, log_scale, _ = _bare_sum(nodes, epsilon)
    if isinstance(nodes.rest, Nodes):
        other, other_slope, other_scale = estimate(nodes.rest, epsilon)
        factor = math.exp(min(other_scale - log_scale, 600.0))
        return total + other * factor, slope + other_slope * factor, log_scale
    return total, slope, log_scale


def _bare_sum(nodes: Nodes, epsilon: float) -> tuple[float, float, float, Complexes]:
    """(S, dS/d epsilon, log of their scale, e^{-iu epsilon}): the nodes' own sum, no bounds."""
    turn = _turns(nodes.h, nodes.value.size, epsilon)
    scale = nodes.h / math.pi
    total = scale * float((nodes.payoff @ turn).real)
    slope = -scale * float((nodes.density @ turn).real)
    return total, slope, nodes.log_m - nodes.c * epsilon, turn


def _grown(exponent: float) -> float:
    """e^exponent as an upper bound: infinite where no double holds it."""
    return math.exp(exponent) if exponent < 700.0 else math.inf


def evaluate(nodes: Nodes, epsilon: float) -> Sum:
    """The certified sum at ``epsilon`` (docs, eq. 14), scaled by exp(log_scale)."""
    c, h = nodes.c, nodes.h
    n = nodes.value.size
    total, slope, log_scale, turn = _bare_sum(nodes, epsilon)
    scale = h / (2 * math.pi)
    # the phase u epsilon of each term is rounded; 24 ulps for the two tables and their products
    size = np.abs(nodes.payoff)
    phase = abs(epsilon) * h * float(size @ np.arange(n, dtype=np.float64))
    error = scale * (nodes.error + 2 * EPS * (8 * phase + 24 * float(size.sum())))
    # a factor common to all nodes: K(c) T, with 32 ulps of M(c) in each step
    count = 32.0 * sum(step.count for step in nodes.side.steps)
    error += abs(total) * EPS * (8 * (abs(nodes.log_m) + c * abs(epsilon) + 8) + count)
    last = n * h
    error += _grown(nodes.log_tail) * (1 / last + h / last**2) / math.pi  # docs, eq. 13
    log_excess = nodes.bounds.log_excess(c, epsilon, np.array([2 * math.pi / h]))
    excess = _grown(float(log_excess[0]) - log_scale)
    # aliasing only adds to the sum (docs, eq. 6): its bound is taken off the lower end alone
    lower, upper = total - error - excess, total + error
    if nodes.smoothing > 0:  # docs, eq. 18: what the extra Gaussian may have added
        v = nodes.smoothing
        u = h * np.arange(n)
        kernel = nodes.value * turn
        density = scale * (2 * float(kernel.real.sum()) - float(kernel[0].real))
        slop = nodes.slop + np.abs(kernel) * (EPS * (8 * u * abs(epsilon) + 16))
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
