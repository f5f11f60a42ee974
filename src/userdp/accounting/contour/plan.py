r"""How many nodes, how far apart: parameters of a certified sum. Nothing here is trusted.

A poor choice makes the bracket wide, never wrong: the excess and the tail are bounded again, at
the epsilon in question, by `trapezoid.evaluate`.
"""

from __future__ import annotations

import math

import numpy as np

from userdp.accounting.contour.chernoff import RATIOS, chernoff
from userdp.accounting.contour.line import Line, make_lines
from userdp.accounting.contour.saddle import Saddle, log_payoff
from userdp.accounting.contour.side import Side
from userdp.accounting.contour.trapezoid import Nodes, compute_nodes

_LOG_SHARE = math.log(1e-9)  # excess and tail, each relative to delta
# v c (c+1) of the extra Gaussian, which is about what it costs relative to delta (docs, eq. 18);
# so much that a few of its terms stay below the width of 1e-6 that is aimed at.
_SMOOTHING_SHARE = 1.5e-7
_MAX_WORK = 5e8  # complex multiply-adds in one set of nodes
MOST_NODES = 1_000_000


def _log_tail(side: Side, lines: tuple[Line, ...], u: float, smoothing: float) -> float:
    """log of a bound of |M(c+iu')/M(c)|^T for all u' >= u (docs, eq. 12)."""
    total = -0.5 * (side.mu2 + smoothing) * u * u
    for line in lines:
        total += line.count * min(line.whole.log_bound(u), 0.0)
    return total


def _periods(saddle: Saddle) -> np.ndarray:
    """Candidates for the period, from one that is surely too short to a very long one.

    The loss has its mass within a few spreads of epsilon, and e^{cy} must fall by e^-25 and delta.
    """
    spread = math.sqrt(saddle.curvature)
    longest = max((25.0 - min(saddle.log_delta, 0.0)) / saddle.c, 5 * spread)
    return np.geomspace(min(2.0 * spread, 0.5 * longest), 40 * longest, 200)


def _reach(
    side: Side, lines: tuple[Line, ...], saddle: Saddle, share: float, log_d: float
) -> tuple[float, float]:
    """(U, smoothing) such that nodes beyond U do not matter; smoothing only where it is needed."""
    c = saddle.c
    v = share / (c * (c + 1))
    k2 = max(saddle.curvature - 1 / c**2 - 1 / (c + 1) ** 2, 1e-300)
    u = min(5.5 / math.sqrt(k2), 1e3 * (c + 1))
    while u < math.sqrt(2 * 27.0 / v):
        if _log_tail(side, lines, u, 0.0) <= _LOG_SHARE + log_d + math.log(math.pi * u):
            return u, 0.0
        u *= 1.12
    for exponent in (20.0, 27.0, 35.0, 50.0):
        u = math.sqrt(2 * exponent / v)
        if _log_tail(side, lines, u, v) <= _LOG_SHARE + log_d + math.log(math.pi * u):
            break
    return u, v


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
    spoiled = math.fsum(line.count * line.whole.defect for line in lines)
    log_d = log_payoff(c, saddle.curvature) if log_share is None else log_share
    if spoiled > 1e-2 or math.log(spoiled / (2 * c)) > log_d - 3:
        return None
    domains = tuple(line.domain for line in lines)
    bounds = chernoff(side, domains, c * RATIOS)
    wanted = saddle.log_delta + _LOG_SHARE - 0.2  # a little more: epsilon may move from here
    period = bounds.shortest_period(c, saddle.epsilon, _periods(saddle), wanted)
    h = 2 * math.pi / period
    width = sum(line.ell.size for line in lines)
    share = _SMOOTHING_SHARE
    while True:
        reach, smoothing = _reach(side, lines, saddle, share, log_d)
        n = math.ceil(reach / h) + 1
        if n * width <= _MAX_WORK and n <= most_nodes:
            break
        if most_nodes < MOST_NODES:
            return None
        share *= 4.0
    if smoothing > 0:  # the extra Gaussian is part of what is summed, so of its excess too
        bounds = chernoff(side, domains, c * RATIOS, smoothing)
    tail = _log_tail(side, lines, n * h, smoothing)
    planned_for = max(saddle.epsilon, 0.0)
    return compute_nodes(side, lines, c, h, n, bounds, smoothing, tail, planned_for)
