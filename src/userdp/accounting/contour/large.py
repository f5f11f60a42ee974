r"""Few large steps: sum only the paths on which at least one step was large.

Where the steps are rarely hit, M(c+iu)^T stays near a plateau and delta is a small difference.
Q = Q_0 + Q_1 by the smooth weight chi(x) = erfc(-kappa (x - x_s))/2, with Q_1 = chi Q the large
steps (docs, Section 5). With that split,

    delta = H(prod Q - prod Q_0 as numerator) + H_0,   0 <= H_0 <= kappa(a) M_0(a)^T e^{-a eps},

and M^T - M_0^T = M_0^T expm1(T log1p(M_1/M_0)) keeps its relative accuracy and decays in u as M_1
does (docs, Section 5). H_0 has no far tail, so where Chernoff's bound of it is not small enough it
is summed at a saddle point of its own (docs, Section 5.3).

Where to split is chosen on the coarse real grid, by upper sums that bound: a choice may be poor but
never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from userdp.accounting.contour.line import EPS, SplitLine, make_split_line, widened
from userdp.accounting.contour.losses import Floats, log1p
from userdp.accounting.contour.nodes import Contour, Nodes, at_nodes, product
from userdp.accounting.contour.side import (
    RATIOS,
    TURN,
    Chernoff,
    GridTooLarge,
    Side,
    Split,
    Splits,
    Step,
    Weight,
    log_kappa,
    log_moment,
    log_upper_share,
    log_upper_sum,
    numerator_mass,
    on_finer_grid,
    split_at,
    strip_height,
)

_LEAST_RATE, _MOST_RATE = 2.5, 12.0

# kappa h_1: a sum with the weight chi misses at most about 2 e^{(kappa Y)^2 - 2 pi Y/h_1} of
# itself, which is below 1e-7 at kappa Y = TURN.
_TURN_A_POINT = 0.7
_BACK = 5.0  # chi is 1 - 1e-12 where the loss is as large as asked: erfc(5)/2 (docs, Section 5.1)
_LEAST_EPSILON = 1e-9  # orders are in units of 1/epsilon
_MOST_HITS = 30.0  # beyond, the plateau is too low to matter and the split only costs

# The loss that makes a step a large one, in parts of epsilon. A larger share leaves more out
# (H_0), a smaller one gives more large steps, so the first share that leaves little out is best.
_SHARES_OF_EPSILON = (0.8, 0.45, 0.3, 0.2, 0.12, 0.07, 0.04, 0.02)
_REST_ORDERS = np.geomspace(0.05, 400.0, 120)  # of M_0, in units of 1/epsilon
_DEEP = 43.0  # the small part of a line ends where its integrand has fallen by e^-43

# Mass that may be left out, in parts of delta. Two such parts (this and the dropped components)
# stay far below the width of 1e-6 that a bracket aims at.
LEFT_OUT = 2e-8


def lengthened(side: Side, splits: Splits, more: float) -> Splits:
    """The same weights on x up to ``more`` beyond where the mass ends."""
    return tuple(
        split_at(step, split.place, split.rate, _stop(step, more))
        for step, split in zip(side.steps, splits, strict=True)
    )


def shortened(side: Side, splits: Splits, b: float) -> tuple[Splits, float] | None:
    """(the weights where the small part lives, its mass beyond); None where it grows again."""
    parts, leak = [], 0.0
    for step, split in zip(side.steps, splits, strict=True):
        x = step.x[split.domain]
        g = b * step.ell[split.domain] - 0.5 * x * x + split.not_chi.log
        main = int(np.searchsorted(x, split.place + 3.0 / split.rate))
        fallen = np.flatnonzero(g[main:] < float(g[: max(main, 1)].max()) - _DEEP)
        if not fallen.size:
            return None
        stop = main + int(fallen[0]) + 1
        leak += step.count * _small_mass(step, split, stop)
        parts.append(split_at(step, split.place, split.rate, stop))
    return tuple(parts), leak


def _stop(step: Step, more: float) -> int:
    return int(min(step.inner.stop + int(more / step.h) + 1, step.x.size))


def _small_mass(step: Step, split: Split, stop: int) -> float:
    """An upper sum of (1 - chi) Q on the domain beyond its first ``stop`` points, one step."""
    beyond = slice(stop - 1, split.domain.stop)
    return numerator_mass(step, beyond, remove=True, log_weight=split.not_chi.log[stop - 1 :])


def log_small(side: Side, splits: Splits, a: Floats) -> Floats:
    """log of an upper bound of prod M_0(a)^T at the orders ``a``."""
    return log_moment(side, a, [s.domain for s in splits], [s.not_chi for s in splits])


def log_large(side: Side, splits: Splits, a: Floats) -> Floats:
    """log of an upper bound of M(a)^T - M_0(a)^T <= (sum T M_1/M) M^T, at the orders ``a``."""
    share = np.full(a.size, -np.inf)
    for step, split in zip(side.steps, splits, strict=True):
        large = log_upper_share(step, split.domain, 1 + a, split.chi)
        share = np.logaddexp(share, math.log(step.count) + large)
    out: Floats = log_moment(side, a, [s.domain for s in splits]) + np.minimum(share, 0.0)
    return out


@dataclass(frozen=True, slots=True)
class Choice:
    """Splits, and a bound of what they leave out: Chernoff's, or None (it needs its own sum).

    ``side`` is the one that was asked for, on grids fine enough for these weights.
    """

    side: Side
    splits: Splits
    rest: Chernoff | None
    leak: float


def choices(side: Side, epsilon: float, log_delta: float) -> Iterator[Choice]:
    """Where to split, best first: one with a Chernoff rest if there is one, else several."""
    if not side.remove or not side.steps or not epsilon > _LEAST_EPSILON:
        return
    without_rest = []
    for share in _SHARES_OF_EPSILON:
        try:
            fine, splits = _splits(side, share * epsilon)
        except GridTooLarge:
            continue
        if _hits(fine, splits) > _MOST_HITS:
            break
        rest, leak = _rest(fine, splits, share * epsilon, epsilon)
        if math.exp(rest.log_delta(epsilon)) + leak <= LEFT_OUT * math.exp(log_delta):
            yield Choice(fine, splits, rest, leak)
            return
        without_rest.append(Choice(fine, splits, None, 0.0))
    yield from without_rest


def _splits(side: Side, loss_at_most: float) -> tuple[Side, Splits]:
    """x_s five widths 1/kappa to the left of where one step alone loses ``loss_at_most``.

    With them the same side, on grids on which sums with these weights are upper sums.
    """
    steps, splits = [], []
    for step in side.steps:
        stop = _stop(step, 1.5)
        hit = min(int(np.searchsorted(step.ell[:stop], loss_at_most)), stop - 1)
        # chi should turn on a scale on which the loss grows by a part of itself
        steep = float(step.slope[hit] / max(step.ell[hit], 1e-300))
        rate = min(max(4.0 * steep, _LEAST_RATE), _MOST_RATE)
        rate = TURN / min(TURN / rate, strip_height(step, slice(0, stop)))
        fine = on_finer_grid(step, _TURN_A_POINT / rate)
        steps.append(fine)
        splits.append(split_at(fine, float(step.x[hit]) - _BACK / rate, rate, _stop(fine, 1.5)))
    return replace(side, steps=tuple(steps)), tuple(splits)


def _hits(side: Side, splits: Splits) -> float:
    """Expected number of large steps."""
    one = np.ones(1)
    return sum(
        step.count * math.exp(min(float(log_upper_sum(step, split.domain, one, split.chi)[0]), 0.0))
        for step, split in zip(side.steps, splits, strict=True)
    )


def _rest(
    side: Side, splits: Splits, loss_at_most: float, epsilon: float
) -> tuple[Chernoff, float]:
    """Bounds of H_0: (all steps lose at most ``loss_at_most``, some step loses more yet is small).

    The second is the numerator mass of such paths (docs, eq. 19).
    """
    leak, domains, weights = 0.0, [], []
    for step, split in zip(side.steps, splits, strict=True):
        ell = step.ell[split.domain]
        stop = min(int(np.searchsorted(ell, loss_at_most)) + 1, ell.size)
        domains.append(slice(0, stop))
        weights.append(Weight(split.not_chi.log[:stop], split.rate))
        leak += step.count * _small_mass(step, split, stop)
    a = _REST_ORDERS / epsilon
    return Chernoff(a, log_moment(side, a, domains, weights) + log_kappa(a)), leak


_LOG_SHARE = math.log(2e-9)  # excess and tail, each relative to delta
_MOST_LOG = 600.0  # of what must be a double
_MOST_NODES, _MOST_WORK = 8e5, 8e8  # work: nodes times points; one to three seconds
_MOST_SMALL_NODES, _MOST_SMALL_WORK = 1e6, 4e8  # for H_0, which is only a part of the answer

# How far beyond the mass x may reach: far enough that cutting there is harmless at a large c, but
# the tilted integrand may rise again there. Each one must gain e^0.5 over the shorter one.
_EXTENSIONS = (1.5, 3.0, 5.0, 8.0)
_ORDERS = np.geomspace(5e-4, 60.0, 80)  # for the abscissa, in units of 1/epsilon
_SMALL_ORDERS = np.geomspace(0.3, 3000.0, 160)


def large_nodes(
    choice: Choice, epsilon: float, log_delta: float, rest: Chernoff | Nodes
) -> Nodes | None:
    """Nodes of the paths with a large step, for deltas near exp(log_delta) at ``epsilon``.

    None where too many would be needed, or where float rounding would leave nothing.
    """
    side = choice.side
    size, c, splits = math.inf, 1.0, choice.splits
    for penalty, more in enumerate(_EXTENSIONS):
        longer = lengthened(side, choice.splits, more)
        order, its_size = _abscissa(side, longer, epsilon, log_delta)
        if its_size + 0.5 * penalty < size:
            size, c, splits = its_size + 0.5 * penalty, order, longer
    lines = tuple(
        make_split_line(step, split, 1.0 + c)
        for step, split in zip(side.steps, splits, strict=True)
    )
    if not _splittable(lines):
        return None
    a = c * RATIOS
    log_mass = min(0.0, float(log_large(side, splits, np.zeros(1))[0]))
    bounds = Chernoff(a, log_large(side, splits, a) + log_kappa(a), log_mass)

    def log_tail(u: float) -> float:
        return _log_tail(lines, side.mu2, u)

    # a tail that is a tenth of delta still gives a bracket; beyond, it is not worth its second
    limits = _Limits(20.0 / epsilon, _MOST_NODES, _MOST_WORK, accepted=-_LOG_SHARE - 2.0)
    spacing = _spacing(bounds, c, epsilon, log_delta, lines, side, log_tail, limits)
    if spacing is None:
        return None
    at, log_m = spacing
    at_small = [at_nodes(line.count, line.small, line.ell, at) for line in lines]
    log_m0, growth = product(side, at_small, at)
    hits, growth_hits = np.zeros(at.n, dtype=np.complex128), np.zeros(at.n)
    # of |M^T| and |M_0^T|, with all allowances
    log_most, log_most_small = np.zeros(at.n), np.zeros(at.n)
    for line, small in zip(lines, at_small, strict=True):
        m0, error0 = small.value, small.error
        m1 = at.sums(line.large.weights, line.ell)
        weight = np.abs(line.large.weights)
        base1 = line.large.defect + EPS * 32.0 * float(weight.sum())
        error1 = base1 + 8 * EPS * (1 + c + at.u) * float(weight @ np.abs(line.ell))
        ratio = m1 / np.where(m0 == 0, 1e-300, m0)
        hits += line.count * log1p(ratio)
        # relative error of 1 + m1/m0; its logarithm errs by at most -log(1 - x), x < 1
        x = (error1 + np.abs(ratio) * error0) / np.maximum(np.abs(m0), 1e-300)
        x = x / np.maximum(np.abs(1 + ratio), 1e-300)
        growth_hits += line.count * -np.log1p(-np.minimum(2 * x, 1 - 1e-16))
        log_most += line.count * np.log(np.abs(m0 + m1) + error0 + error1)
        log_most_small += line.count * np.log(np.abs(m0) + error0)
    if not float(hits.real.max()) < _MOST_LOG or not float(log_m0.real.max()) < _MOST_LOG:
        return None  # also where one of them is not a number
    value = np.exp(log_m0) * np.expm1(hits)
    growth_hits += EPS * 8 * np.abs(hits)
    # |M_0'^T (e^v' - 1) - M_0^T (e^v - 1)|: first the factor M_0^T, then e^v (docs, eq. 14)
    with np.errstate(divide="ignore"):
        log_size = np.log(np.abs(value))
    slop = widened(log_size, growth)
    with np.errstate(over="ignore", invalid="ignore"):
        slop += np.exp(growth) * widened(log_m0.real + hits.real, growth_hits)
        # where a step's M is lost in its allowances, the sizes themselves are the better bound
        decay = -0.5 * side.mu2 * at.u**2 + 1e-9
        most = np.exp(log_most + decay) + np.exp(log_most_small + decay) + np.exp(log_size)
    slop = np.fmin(slop, most)
    if not bool(np.isfinite(slop).all()):
        return None  # the allowances say nothing here
    tail, leak = log_tail(at.end), choice.leak
    return Nodes(side, at, value, slop, log_m, bounds, tail, epsilon, rest=rest, leak=leak)


def small_nodes(choice: Choice, epsilon: float, log_delta: float) -> Nodes | None:
    """Nodes of H_0, precise enough for a total near exp(log_delta); None where it is too wide."""
    side, splits = choice.side, choice.splits
    orders = _SMALL_ORDERS / epsilon
    size = log_small(side, splits, orders) - orders * epsilon - np.log(orders * (1 + orders))
    c = float(orders[int(size.argmin())])
    short = shortened(side, splits, 1 + c)
    if short is None or math.log(max(short[1], 1e-300)) > log_delta + math.log(LEFT_OUT):
        return None
    splits, leak = short
    lines = tuple(
        make_split_line(step, split, 1 + c, of_small=True)
        for step, split in zip(side.steps, splits, strict=True)
    )
    if any(not line.small.value > 1e-290 for line in lines):
        return None
    a = c * RATIOS
    bounds = Chernoff(a, log_small(side, splits, a) + log_kappa(a))

    def log_tail(u: float) -> float:
        bound = math.fsum(line.count * line.small.log_bound(u) for line in lines)
        return -0.5 * side.mu2 * u * u + bound

    limits = _Limits(c, _MOST_SMALL_NODES, _MOST_SMALL_WORK, accepted=0.0)
    spacing = _spacing(bounds, c, epsilon, log_delta, lines, side, log_tail, limits)
    if spacing is None:
        return None
    at, log_m = spacing
    factors = [at_nodes(line.count, line.small, line.ell, at) for line in lines]
    log_value, growth = product(side, factors, at)
    value, slop = np.exp(log_value), widened(log_value.real, growth)
    return Nodes(side, at, value, slop, log_m, bounds, log_tail(at.end), epsilon, leak=leak)


class _Limits(NamedTuple):
    """Where the search for the last node begins, and where it ends.

    Beyond so many nodes, or nodes times points, the tail may be larger by e^accepted than wanted.
    """

    start: float
    nodes: float
    work: float
    accepted: float


def _spacing(
    bounds: Chernoff,
    c: float,
    epsilon: float,
    log_delta: float,
    lines: tuple[SplitLine, ...],
    side: Side,
    log_tail: Callable[[float], float],
    limits: _Limits,
) -> tuple[Contour, float] | None:
    """(the nodes, K(c) of the composition), such that excess and tail do not matter.

    None where the tail is larger than ``limits`` accepts.
    """
    periods = np.geomspace(2.0 / c, 400.0 / c, 160)
    h = 2 * math.pi / bounds.shortest_period(c, epsilon, periods, log_delta + _LOG_SHARE)
    log_m = math.fsum(line.count * line.log_m for line in lines) + 0.5 * side.mu2 * c * (c + 1)
    wanted = log_delta + _LOG_SHARE - (log_m - c * epsilon)
    limit = h * min(limits.nodes, limits.work / sum(line.ell.size for line in lines))
    u = min(limits.start, limit)
    while (missing := log_tail(u) - math.log(math.pi * u) - wanted) > 0 and u < limit:
        u *= 1.15
    return (Contour(c, h, math.ceil(u / h) + 1), log_m) if missing <= limits.accepted else None


def _abscissa(side: Side, splits: Splits, epsilon: float, log_delta: float) -> tuple[float, float]:
    """(c, log of the integrand's size): least size, if the cut at the right end is harmless."""
    orders = _ORDERS / epsilon
    size = log_large(side, splits, orders) - orders * epsilon - np.log(orders * (1 + orders))
    for step, split in zip(side.steps, splits, strict=True):
        x, ell = step.x[split.domain], step.ell[split.domain]
        edge = (1 + orders) * ell[-1] - 0.5 * x[-1] ** 2 + math.log(3 * step.count)
        bad = edge - orders * epsilon - np.log(2 * orders) > log_delta + _LOG_SHARE
        size = np.where(bad, size + 1e6, size)
    k = int(size.argmin())
    return float(orders[k]), float(size[k])


def _log_tail(lines: tuple[SplitLine, ...], mu2: float, u: float) -> float:
    """log of a bound of |prod M^T - prod M_0^T| / prod M(c)^T for all u' >= u (docs, Section 5).

    The difference is at most sum T |M_1| / B times prod B^T with B >= |M|, |M_0| at each step.
    """
    shares, log_product = [], -0.5 * mu2 * u * u
    for line in lines:
        large = line.large.log_bound(u)
        both = min(0.0, float(np.logaddexp(line.small.log_bound(u), large)))
        shares.append(math.log(line.count) + min(large - both, 0.0))
        log_product += line.count * both
    return float(np.logaddexp.reduce(shares)) + log_product


def _splittable(lines: tuple[SplitLine, ...]) -> bool:
    """Whether prod M / prod M_0 is a double at u = 0, where it is largest."""
    total = 0.0
    for line in lines:
        small, large = line.small.value, line.large.value
        if not small > 1e-290 or not large > -0.5 * small:
            return False  # hardly a step is small, or rounding is all there is: nothing to split
        total += line.count * math.log1p(large / small)
    return total < _MOST_LOG
