r"""How many nodes, how far apart: parameters of a certified sum. Nothing here is trusted.

A poor choice makes the bracket wide, never wrong: the excess and the tail are bounded again, at
the epsilon in question, by `trapezoid.evaluate`.
"""

from __future__ import annotations

import math

import numpy as np

from userdp.accounting.contour.line import Line, make_lines
from userdp.accounting.contour.saddle import Saddle
from userdp.accounting.contour.side import Side
from userdp.accounting.contour.trapezoid import RATIOS, Nodes, chernoff, compute_nodes

LOG_SHARE = math.log(1e-9)  # excess and tail, each relative to delta
_SMOOTHING_SHARE = 1.5e-7  # v c (c+1)
_MAX_WORK = 5e8  # complex multiply-adds in one set of nodes
MOST_NODES = 1_000_000


def log_tail(side: Side, lines: tuple[Line, ...], u: float, smoothing: float) -> float:
    """log of a bound of |M(c+iu')/M(c)|^T for all u' >= u (docs, eq. 12)."""
    total = -0.5 * (side.mu2 + smoothing) * u * u
    for line in lines:
        total += line.count * line.log_bound(u)
    return total


def _period(side: Side, domains: tuple[slice, ...], saddle: Saddle) -> float:
    """The least period whose excess is below e^LOG_SHARE of the estimated delta."""
    c, log_delta = saddle.c, saddle.log_delta
    spread = math.sqrt(saddle.curvature)
    bounds = chernoff(side, domains, c * RATIOS)
    longest = max((25.0 - min(log_delta, 0.0)) / c, 5 * spread)
    periods = np.geomspace(min(2.0 * spread, 0.5 * longest), 40 * longest, 200)
    excess = bounds.log_excess(c, saddle.epsilon, periods)
    fine = np.flatnonzero(excess <= log_delta + LOG_SHARE - 0.2)
    return float(periods[fine[0]] if fine.size else periods[-1])


def _reach(
    side: Side, lines: tuple[Line, ...], saddle: Saddle, share: float, log_d: float
) -> tuple[float, float, float]:
    """(U, smoothing, log tail) such that nodes beyond U do not matter."""
    c = saddle.c
    v = share / (c * (c + 1))
    k2 = max(saddle.curvature - 1 / c**2 - 1 / (c + 1) ** 2, 1e-300)
    u = min(5.5 / math.sqrt(k2), 1e3 * (c + 1))
    last = math.sqrt(2 * 27.0 / v)
    while u < last:
        tail = log_tail(side, lines, u, 0.0)
        if tail <= LOG_SHARE + log_d + math.log(math.pi * u):
            return u, 0.0, tail
        u *= 1.12
    for exponent in (20.0, 27.0, 35.0, 50.0):
        last = math.sqrt(2 * exponent / v)
        tail = log_tail(side, lines, last, v)
        if tail <= LOG_SHARE + log_d + math.log(math.pi * last):
            break
    return last, v, tail


def plan_nodes(
    side: Side, saddle: Saddle, most_nodes: int = MOST_NODES, log_share: float | None = None
) -> Nodes | None:
    """Nodes for epsilons near ``saddle.epsilon``, whose delta is near exp(saddle.log_delta).

    None where the domain cuts alone would spoil the answer, or where more than ``most_nodes``
    (a limit below `MOST_NODES`) would be needed: another way has to be tried. ``log_share``:
    log of delta / (M(c)^T e^{-c eps}) where better known than by the saddle-point estimate.
    """
    c = saddle.c
    lines = make_lines(side, c)
    spoiled = math.fsum(line.count * line.defect for line in lines)
    log_d = log_share
    if log_d is None:  # delta / (M(c)^T e^{-c eps}) by the saddle-point estimate
        log_d = -math.log(c) - math.log1p(c) - 0.5 * math.log(2 * math.pi * saddle.curvature)
    if spoiled > 1e-2 or math.log(spoiled / (2 * c)) > log_d - 3:
        return None
    domains = tuple(line.domain for line in lines)
    period = _period(side, domains, saddle)
    h = 2 * math.pi / period
    width = sum(line.ell.size for line in lines)
    share = _SMOOTHING_SHARE
    while True:
        reach, smoothing, _ = _reach(side, lines, saddle, share, log_d)
        n = math.ceil(reach / h) + 1
        if n * width <= _MAX_WORK and n <= most_nodes:
            break
        if most_nodes < MOST_NODES:
            return None
        share *= 4.0
    tail = log_tail(side, lines, n * h, smoothing)
    bounds = chernoff(side, domains, c * RATIOS, smoothing)
    planned_for = max(saddle.epsilon, 0.0)
    return compute_nodes(side, lines, c, h, n, bounds, smoothing, tail, planned_for)
