r"""The paths without a large step, on an abscissa of their own.

H_0 = H(Q_0^T, P^T) with Q_0 = (1 - chi) Q has no far tail, so its own saddle point suits it; it
completes `large.large_nodes` where a Chernoff bound of H_0 is not small enough (docs, Section 5.3).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr

from userdp.accounting.contour.large import LargeLine, Split, make_large_line
from userdp.accounting.contour.line import EPS
from userdp.accounting.contour.losses import Floats
from userdp.accounting.contour.precise import departures, log1p
from userdp.accounting.contour.rounding import rounding, widened
from userdp.accounting.contour.side import LOG_SQRT_2PI, Side, Step
from userdp.accounting.contour.trapezoid import RATIOS, Chernoff, Nodes, log_kappa

_LOG_SHARE = math.log(2e-9)
_DEEP = 43.0


def _shape(step: Step, split: Split, b: float) -> Floats:
    """log of the weighted integrand on the coarse grid of ``split``."""
    x = step.x[split.domain]
    ell = step.ell[split.domain]
    out: Floats = b * ell - 0.5 * x * x + log_ndtr(-math.sqrt(2) * split.rate * (x - split.place))
    return out


def _shorten(step: Step, split: Split, b: float) -> tuple[Split, float] | None:
    """(the split on the x where its small part lives, mass beyond); None if it grows again."""
    g = _shape(step, split, b)
    x = step.x[split.domain]
    main = int(np.searchsorted(x, split.place + 3.0 / split.rate))
    top = float(g[: max(main, 1)].max())
    after = np.flatnonzero(g[main:] < top - _DEEP)
    if not after.size:
        return None
    stop = main + int(after[0]) + 1
    ell = step.ell[split.domain]
    lost = np.exp(ell[stop - 1 :] - 0.5 * x[stop - 1 :] ** 2) * split.not_chi[stop - 1 :]
    leak = step.count * float(lost.sum()) * step.h
    part = Split(
        split.place,
        split.rate,
        slice(split.domain.start, split.domain.start + stop),
        split.chi[:stop],
        split.not_chi[:stop],
    )
    return part, leak


def _log_small(side: Side, splits: tuple[Split, ...], a: Floats) -> Floats:
    """log of an upper sum of prod M_0(a)^T."""
    k = 0.5 * side.mu2 * a * (a + 1)
    for step, split in zip(side.steps, splits, strict=True):
        ell, x = step.ell[split.domain], step.x[split.domain]
        weight = log_ndtr(-math.sqrt(2) * split.rate * (x - split.place))
        g = (1 + a)[:, None] * ell[None, :] + (weight - 0.5 * x * x)[None, :]
        top = g.max(axis=1)
        e = np.exp(g - top[:, None])
        total = (e.sum(axis=1) + e[:, -1]) * step.h
        k = k + step.count * (top + np.log(total) - LOG_SQRT_2PI + 1e-6)
    out: Floats = k + 1e-9 * np.abs(k)
    return out


def small_nodes(
    side: Side, splits: tuple[Split, ...], epsilon: float, log_delta: float
) -> Nodes | None:
    """Nodes of H_0, precise enough for a total near exp(log_delta); None where it is too wide."""
    cut = []
    leak = 0.0
    orders = np.geomspace(0.3, 3000.0, 160) / epsilon
    size = _log_small(side, splits, orders) - orders * epsilon
    c = float(orders[int((size - np.log(orders * (1 + orders))).argmin())])
    for step, split in zip(side.steps, splits, strict=True):
        short = _shorten(step, split, 1 + c)
        if short is None:
            return None
        cut.append(short[0])
        leak += short[1]
    if math.log(max(leak, 1e-300)) > log_delta + math.log(2e-8):
        return None
    parts = tuple(cut)
    lines = tuple(
        make_large_line(step, split, 1 + c, of_small=True)
        for step, split in zip(side.steps, parts, strict=True)
    )
    return _nodes(side, parts, lines, c, epsilon, log_delta, leak)


def _log_tail(lines: tuple[LargeLine, ...], mu2: float, u: float) -> float:
    return -0.5 * mu2 * u * u + math.fsum(ln.count * ln.log_bound_small(u) for ln in lines)


def _nodes(
    side: Side,
    splits: tuple[Split, ...],
    lines: tuple[LargeLine, ...],
    c: float,
    epsilon: float,
    log_delta: float,
    leak: float,
) -> Nodes | None:
    a = c * RATIOS
    bounds = Chernoff(a, _log_small(side, splits, a) + log_kappa(a))
    log_m = math.fsum(line.count * line.log_m for line in lines) + 0.5 * side.mu2 * c * (c + 1)
    periods = np.geomspace(2.0 / c, 400.0 / c, 160)
    excess = bounds.log_excess(c, epsilon, periods)
    fine = np.flatnonzero(excess <= log_delta + _LOG_SHARE)
    period = float(periods[fine[0]] if fine.size else periods[int(excess.argmin())])
    h = 2 * math.pi / period
    wanted = log_delta + _LOG_SHARE - (log_m - c * epsilon)
    u = c
    width = sum(line.ell.size for line in lines)
    while _log_tail(lines, side.mu2, u) - math.log(math.pi * u) > wanted:
        u *= 1.15
        if u / h * width > 4e8 or u / h > 1e6:
            return None
    n = math.ceil(u / h) + 1
    grid: Floats = h * np.arange(n, dtype=np.float64)
    log_value = np.zeros(n, dtype=np.complex128)
    growth = np.zeros(n)
    noise = 0.0
    for line in lines:
        start = float(line.small.sum().real)
        if not start > 1e-290:
            return None
        away = departures(line.small, line.ell, h, n) / start
        size0 = start * np.maximum(np.abs(1 + away), 1e-300)
        error0 = line.defect + rounding(line.small, line.ell, c, grid)
        growth += line.count * np.log1p(error0 / size0)
        log_value += line.count * (math.log(start) + log1p(away))
        noise += line.count * line.noise
    log_value += side.mu2 * (-0.5 * grid**2 + 1j * grid * (c + 0.5))
    growth += EPS * (64 + 8 * np.abs(log_value))
    tail = _log_tail(lines, side.mu2, n * h)
    return Nodes(
        side,
        c,
        h,
        np.exp(log_value),
        widened(log_value.real, growth),
        log_m,
        noise,
        bounds,
        tail,
        0.0,
        leak=leak,
        epsilon=epsilon,
    )
