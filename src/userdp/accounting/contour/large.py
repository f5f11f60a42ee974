r"""Few large steps: count only the paths on which at least one step was large.

Where the steps are rarely hit, M(c+iu)^T stays near a plateau and delta is a small difference.
Split Q = Q_0 + Q_1 by a smooth weight chi(x) = erfc(-kappa (x - x_s))/2 (Q_1 = chi Q: large). Then

    delta = H(prod Q - prod Q_0 as numerator) + H_0,   0 <= H_0 <= kappa(a) M_0(a)^T e^{-a eps},

and M^T - M_0^T = M_0^T expm1(T log1p(M_1/M_0)) keeps its relative accuracy and decays in u as M_1
does (docs, Section 5).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import erfc, log_ndtr

from userdp.accounting.contour.line import (
    ALIAS_MARGIN,
    EPS,
    MOST_POINTS,
    UnsoundStrip,
    is_sound,
    strip_height,
    sums_agree,
)
from userdp.accounting.contour.losses import Complexes, Floats, losses
from userdp.accounting.contour.precise import departures, log1p, sums
from userdp.accounting.contour.rounding import rounding, widened
from userdp.accounting.contour.side import LOG_SQRT_2PI, Side, Step
from userdp.accounting.contour.trapezoid import RATIOS, Chernoff, Nodes, log_kappa

_LOG_SHARE = math.log(2e-9)
_TURN = 3.2  # kappa Y: |chi| grows by at most about e^{(kappa Y)^2} on the strip
_LEAST_RATE, _MOST_RATE = 2.5, 12.0
_BACK = 5.0
_LEAST_EPSILON = 1e-9  # orders are in units of 1/epsilon
_MOST_LOG = 600.0  # of what must be a double
_MOST_NODES, _MOST_WORK = 8e5, 8e8  # work: nodes times points; one to three seconds
_EXTENSIONS = (1.5, 3.0, 5.0, 8.0)
_MOST_HITS = 30.0  # beyond, the plateau is too low to matter and the split only costs
_SHARES_OF_EPSILON = (0.8, 0.45, 0.3, 0.2, 0.12, 0.07, 0.04, 0.02)
_FRACTIONS = np.array([0.0, 0.03, 0.06, 0.12, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0])
_ORDERS = np.geomspace(0.05, 400.0, 120)  # of M_0, in units of 1/epsilon


@dataclass(frozen=True, slots=True)
class Split:
    """One step's weight chi: ``place`` x_s, ``rate`` kappa; on the coarse grid in ``domain``."""

    place: float
    rate: float
    domain: slice
    chi: Floats
    not_chi: Floats


def _log_parts(step: Step, split: Split, b: Floats) -> tuple[Floats, Floats]:
    """log of upper sums of M_0(.) and M_1(.) at the exponents ``b`` (docs, eq. 8)."""
    ell, x = step.ell[split.domain], step.x[split.domain]
    g = b[:, None] * ell[None, :] - 0.5 * (x * x)[None, :]
    top = g.max(axis=1)
    e = np.exp(g - top[:, None])
    ends = e[:, [0, -1]]
    out = []
    for weight in (split.not_chi, split.chi):
        total = e @ weight + ends @ weight[[0, -1]]
        with np.errstate(divide="ignore"):
            out.append(top + np.log(total * step.h) - LOG_SQRT_2PI + 1e-6)
    return out[0], out[1]


def _rest(
    side: Side, splits: tuple[Split, ...], loss_at_most: float, epsilon: float
) -> tuple[Chernoff, float]:
    """Bounds of H_0: (all steps lose at most ``loss_at_most``, some step loses more yet is small).

    The second is the numerator mass of such paths (docs, eq. 19).
    """
    a = _ORDERS / epsilon
    k = 0.5 * side.mu2 * a * (a + 1)
    leak = 0.0
    for step, split in zip(side.steps, splits, strict=True):
        ell, x = step.ell[split.domain], step.x[split.domain]
        stop = min(int(np.searchsorted(ell, loss_at_most)) + 1, ell.size)
        g = (1.0 + a)[:, None] * ell[None, :stop] - 0.5 * (x * x)[None, :stop]
        top = g.max(axis=1)
        e = np.exp(g - top[:, None]) * split.not_chi[None, :stop]
        total = (e.sum(axis=1) + e[:, -1]) * step.h
        k = k + step.count * (top + np.log(total) - LOG_SQRT_2PI + 1e-6)
        beyond = np.exp(ell[stop - 1 :] - 0.5 * x[stop - 1 :] ** 2) * split.not_chi[stop - 1 :]
        leak += step.count * float(beyond.sum()) * step.h * math.exp(-LOG_SQRT_2PI)
    return Chernoff(a, k + 1e-9 * np.abs(k) + log_kappa(a)), leak


def _log_large(side: Side, splits: tuple[Split, ...], a: Floats) -> Floats:
    """log of an upper bound of M(a)^T - M_0(a)^T <= (sum T M_1/M) M^T, at the orders ``a``."""
    k = 0.5 * side.mu2 * a * (a + 1)
    share = np.full(a.size, -np.inf)
    for step, split in zip(side.steps, splits, strict=True):
        small, large = _log_parts(step, split, 1.0 + a)
        whole = np.logaddexp(small, large)
        k = k + step.count * whole
        share = np.logaddexp(share, math.log(step.count) + large - whole + 3e-6)
    out: Floats = k + np.minimum(share, 0.0) + 1e-9 * np.abs(k)
    return out


def _splits(side: Side, loss_at_most: float) -> tuple[Split, ...]:
    """x_s five widths 1/kappa to the left of where one step alone loses ``loss_at_most``."""
    out = []
    for step in side.steps:
        stop = min(step.inner.stop + int(1.5 / step.h) + 1, step.x.size)
        domain = slice(0, stop)
        hit = min(int(np.searchsorted(step.ell[domain], loss_at_most)), stop - 1)
        steep = float(step.slope[hit] / max(step.ell[hit], 1e-300))
        height = min(
            _TURN / min(max(4.0 * steep, _LEAST_RATE), _MOST_RATE), strip_height(step, domain)
        )
        rate = _TURN / height
        place = float(step.x[hit]) - _BACK / rate
        t = rate * (step.x[domain] - place)
        out.append(Split(place, rate, domain, 0.5 * erfc(-t), 0.5 * erfc(t)))
    return tuple(out)


@dataclass(frozen=True, slots=True)
class LargeLine:
    """M_0 and M_1 of one step from one shifted line; both relative to exp(log_m)."""

    count: int
    ell: Complexes
    small: Complexes
    large: Complexes
    log_m: float
    defect: float  # of M_0, relative to exp(log_m)
    defect_large: float  # of M_1, relative to exp(log_m)
    noise: float
    log_size: Floats  # log |f_0 chi| + log h on the bounding lines
    log_size_small: Floats
    imag: Floats

    def log_bound_large(self, u: float) -> float:
        """log of a bound of |M_1(c + iu')| / exp(log_m) for all u' >= u."""
        e = np.exp(self.log_size - u * self.imag)
        fine = e.sum(axis=1)
        off = np.abs(e[:, ::2].sum(axis=1) - e[:, 1::2].sum(axis=1)) * 2
        return math.log(float((fine + off).min()) * 1.01 + self.defect_large)

    def log_bound_small(self, u: float) -> float:
        """log of a bound of |M_0(c + iu')| / exp(log_m) for all u' >= u."""
        e = np.exp(self.log_size_small - u * self.imag)
        fine = e.sum(axis=1)
        off = np.abs(e[:, ::2].sum(axis=1) - e[:, 1::2].sum(axis=1)) * 2
        return math.log(float((fine + off + 1e-15).min()) + self.defect)


def make_large_line(step: Step, split: Split, b: float, *, of_small: bool = False) -> LargeLine:
    """The line for the exponent b = 1 + c, relative to M(c) or (``of_small``) to M_0(c)."""
    low, high = float(step.x[split.domain][0]), float(step.x[split.domain][-1])
    height = min(_TURN / split.rate, strip_height(step, split.domain))
    while True:
        y = 0.5 * height
        h = 2 * math.pi * y / (42.5 + 0.5 * height**2 + (height * split.rate) ** 2)
        n = math.ceil((high - low) / h) + 1
        if n > MOST_POINTS:
            raise UnsoundStrip
        h = (high - low) / (n - 1)
        x: Floats = low + h * np.arange(n, dtype=np.float64)
        heights = np.concatenate([[y], height * _FRACTIONS])
        ell, slope, bend = losses(step.law, x, heights, 0.5 * h)
        if is_sound(step.law, x, heights, ell, slope, bend, height):
            break
        height *= 0.8
    z = x[None, :] + 1j * heights[:, None]
    log_f = b * ell - 0.5 * z * z + (math.log(h) - LOG_SQRT_2PI)
    real = log_f[1].real
    if of_small:
        real = real + log_ndtr(-math.sqrt(2) * split.rate * (x - split.place))
    log_m = float(real.max()) + math.log(float(np.exp(real - real.max()).sum()))
    f = np.exp(log_f - log_m)
    chi = 0.5 * erfc(-split.rate * (z - split.place))
    not_chi = 0.5 * erfc(split.rate * (z - split.place))
    large, small = f * chi, f * not_chi
    with np.errstate(divide="ignore"):
        log_size = np.log(np.abs(large))
        log_size_small = np.log(np.abs(small))
    alias = math.exp(-2 * math.pi * y / h) * ALIAS_MARGIN

    def defect(parts: Complexes) -> float:
        size = np.abs(parts)
        ends = size[:, [0, -1]].max(axis=0)
        ends = ends * np.maximum(1.0, ends / np.maximum(size[:, [1, -2]].max(axis=0), 1e-300))
        edge = float(ends.sum()) / h * (height + h)
        return alias * float(size[1].sum() + size[-1].sum()) + edge

    exponent = b * float(np.abs(ell[0]).max()) + 0.5 * float((x * x).max())
    defect_small, defect_large = defect(small) + 1e-18, defect(large)
    for parts, missed in ((small, defect_small), (large, defect_large)):
        if not sums_agree(parts[0], parts[1], exponent, missed):
            raise UnsoundStrip
    noise = float(np.abs(f[0]) @ np.abs(ell[0]))
    return LargeLine(
        step.count,
        ell[0],
        small[0],
        large[0],
        log_m,
        defect_small,
        defect_large,
        noise,
        log_size[1:],
        log_size_small[1:],
        np.maximum(ell.imag[1:], 0.0),
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """Splits, and a bound of what they leave out: Chernoff's, or None (it needs its own sum)."""

    splits: tuple[Split, ...]
    rest: Chernoff | None
    leak: float


def choices(side: Side, epsilon: float, log_delta: float) -> Iterator[Choice]:
    """Where to split, best first: one with a Chernoff rest if there is one, else several."""
    if not side.remove or not side.steps or not epsilon > _LEAST_EPSILON:
        return
    tolerance = 2e-8 * math.exp(log_delta)
    found = []
    for share in _SHARES_OF_EPSILON:
        splits = _splits(side, share * epsilon)
        if _hits(side, splits) > _MOST_HITS:
            break
        rest, leak = _rest(side, splits, share * epsilon, epsilon)
        if math.exp(rest.log_delta(epsilon)) + leak <= tolerance:
            yield Choice(splits, rest, leak)
            return
        found.append(Choice(splits, None, 0.0))
    yield from found


def large_nodes(
    side: Side,
    choice: Choice,
    epsilon: float,
    log_delta: float,
    rest: Chernoff | Nodes,
) -> Nodes | None:
    """Nodes of the paths with a large step, for deltas near exp(log_delta) at ``epsilon``."""
    orders = np.geomspace(5e-4, 60.0, 80) / epsilon
    best: tuple[float, float, tuple[Split, ...]] | None = None
    for i, more in enumerate(_EXTENSIONS):
        longer = tuple(
            _extended(step, split, more)
            for step, split in zip(side.steps, choice.splits, strict=True)
        )
        c, size = _abscissa(side, longer, epsilon, log_delta, orders)
        if best is None or size + 0.5 * i < best[0]:
            best = (size + 0.5 * i, c, longer)
    assert best is not None
    _, c, splits = best
    lines = tuple(
        make_large_line(step, split, 1.0 + c)
        for step, split in zip(side.steps, splits, strict=True)
    )
    return _nodes(side, splits, lines, c, epsilon, log_delta, rest, choice.leak)


def _extended(step: Step, split: Split, more: float) -> Split:
    """The same weight on x up to ``more`` beyond where the mass ends."""
    stop = min(step.inner.stop + int(more / step.h) + 1, step.x.size)
    domain = slice(split.domain.start, stop)
    t = split.rate * (step.x[domain] - split.place)
    return Split(split.place, split.rate, domain, 0.5 * erfc(-t), 0.5 * erfc(t))


def _hits(side: Side, splits: tuple[Split, ...]) -> float:
    """Expected number of large steps."""
    total = 0.0
    for step, split in zip(side.steps, splits, strict=True):
        large = float(_log_parts(step, split, np.ones(1))[1][0])
        total += step.count * math.exp(min(large, 0.0))
    return total


def _abscissa(
    side: Side, splits: tuple[Split, ...], epsilon: float, log_delta: float, orders: Floats
) -> tuple[float, float]:
    """(c, log of the integrand's size): least size, if the cut at the right end is harmless."""
    size = _log_large(side, splits, orders) - orders * epsilon - np.log(orders * (1 + orders))
    for step, split in zip(side.steps, splits, strict=True):
        x, ell = step.x[split.domain], step.ell[split.domain]
        edge = (1 + orders) * ell[-1] - 0.5 * x[-1] ** 2 + math.log(3 * step.count)
        bad = edge - orders * epsilon - np.log(2 * orders) > log_delta + _LOG_SHARE
        size = np.where(bad, size + 1e6, size)
    k = int(size.argmin())
    return float(orders[k]), float(size[k])


def _log_tail(lines: tuple[LargeLine, ...], mu2: float, u: float) -> float:
    """log of a bound of |prod M^T - prod M_0^T| / prod M(c)^T for all u' >= u (docs, Section 5).

    The difference is at most sum T |M_1| / B times prod B^T with B >= |M|, |M_0| at each step.
    """
    shares, product = [], -0.5 * mu2 * u * u
    for line in lines:
        large = line.log_bound_large(u)
        both = min(0.0, float(np.logaddexp(line.log_bound_small(u), large)))
        shares.append(math.log(line.count) + min(large - both, 0.0))
        product += line.count * both
    return float(np.logaddexp.reduce(shares)) + product


def _splittable(lines: tuple[LargeLine, ...]) -> bool:
    """Whether prod M / prod M_0 is a double at u = 0, where it is largest."""
    total = 0.0
    for line in lines:
        small, large = float(line.small.sum().real), float(line.large.sum().real)
        if not small > 1e-290 or not large > -0.5 * small:
            return False  # hardly a step is small, or rounding is all there is: nothing to split
        total += line.count * math.log1p(large / small)
    return total < _MOST_LOG


def _nodes(
    side: Side,
    splits: tuple[Split, ...],
    lines: tuple[LargeLine, ...],
    c: float,
    epsilon: float,
    log_delta: float,
    rest: Chernoff | Nodes,
    leak: float,
) -> Nodes | None:
    a = c * RATIOS
    value = _log_large(side, splits, a) + log_kappa(a)
    log_mass = min(0.0, float(_log_large(side, splits, np.array([0.0]))[0]))
    bounds = Chernoff(a, value, log_mass)
    log_m = math.fsum(line.count * line.log_m for line in lines) + 0.5 * side.mu2 * c * (c + 1)
    periods = np.geomspace(2.0 / c, 400.0 / c, 160)
    excess = bounds.log_excess(c, epsilon, periods)
    fine = np.flatnonzero(excess <= log_delta + _LOG_SHARE)
    period = float(periods[fine[0]] if fine.size else periods[int(excess.argmin())])
    h = 2 * math.pi / period
    wanted = log_delta + _LOG_SHARE - (log_m - c * epsilon)
    if not _splittable(lines):
        return None
    u = min(20.0 / epsilon, _MOST_NODES * h)
    width = sum(line.ell.size for line in lines)
    while True:
        tail = _log_tail(lines, side.mu2, u)
        if tail - math.log(math.pi * u) <= wanted:
            break
        u *= 1.15
        if u / h * width > _MOST_WORK or u / h > _MOST_NODES:
            if tail - math.log(math.pi * u) > wanted - _LOG_SHARE - 2.0:
                return None  # what lies beyond could be a tenth of delta: not worth its second
            break
    n = math.ceil(u / h) + 1
    tail = _log_tail(lines, side.mu2, n * h)
    grid: Floats = h * np.arange(n, dtype=np.float64)
    log_small = np.zeros(n, dtype=np.complex128)
    hits = np.zeros(n, dtype=np.complex128)
    growth, growth_hits = np.zeros(n), np.zeros(n)
    log_most, log_most_small = np.zeros(n), np.zeros(n)  # of |M^T|, |M_0^T| with all allowances
    noise = 0.0
    for line in lines:
        start = float(line.small.sum().real)
        away = departures(line.small, line.ell, h, n) / start
        m0 = start * (1 + away)
        m1 = sums(line.large, line.ell, h, n)
        size0 = np.maximum(np.abs(m0), 1e-300)
        error0 = line.defect + rounding(line.small, line.ell, c, grid)
        base1 = line.defect_large + EPS * 32.0 * float(np.abs(line.large).sum())
        error1 = base1 + 8 * EPS * (1 + c + grid) * float(np.abs(line.large) @ np.abs(line.ell))
        log_small += line.count * (math.log(start) + log1p(away))
        ratio = m1 / np.where(m0 == 0, 1e-300, m0)
        hits += line.count * log1p(ratio)
        growth += line.count * np.log1p(error0 / size0)
        # relative error of 1 + m1/m0; its logarithm errs by at most -log(1 - x), x < 1
        x = (error1 + np.abs(ratio) * error0) / size0 / np.maximum(np.abs(1 + ratio), 1e-300)
        growth_hits += line.count * -np.log1p(-np.minimum(2 * x, 1 - 1e-16))
        log_most += line.count * np.log(np.abs(m0 + m1) + error0 + error1)
        log_most_small += line.count * np.log(np.abs(m0) + error0)
        noise += line.count * line.noise
    log_small += side.mu2 * (-0.5 * grid**2 + 1j * grid * (c + 0.5))
    if not float(hits.real.max()) < _MOST_LOG or not float(log_small.real.max()) < _MOST_LOG:
        return None  # also where one of them is not a number
    value_nodes = np.exp(log_small) * np.expm1(hits)
    growth += EPS * (64 + 8 * np.abs(log_small))
    growth_hits += EPS * 8 * np.abs(hits)
    # |M_0'^T (e^v' - 1) - M_0^T (e^v - 1)|: first the factor M_0^T, then e^v (docs, eq. 14)
    with np.errstate(divide="ignore"):
        log_size = np.log(np.abs(value_nodes))
    slop = widened(log_size, growth)
    with np.errstate(over="ignore", invalid="ignore"):
        slop += np.exp(growth) * widened(log_small.real + hits.real, growth_hits)
        # where a step's M is lost in its allowances, the sizes themselves are the better bound
        decay = -0.5 * side.mu2 * grid**2 + 1e-9
        most = np.exp(log_most + decay) + np.exp(log_most_small + decay) + np.exp(log_size)
    slop = np.fmin(slop, most)
    if not bool(np.isfinite(slop).all()):
        return None  # the allowances say nothing here
    return Nodes(
        side, c, h, value_nodes, slop, log_m, noise, bounds, tail, 0.0, rest, leak, epsilon
    )
