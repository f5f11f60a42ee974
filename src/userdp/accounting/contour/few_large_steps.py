r"""Few large steps: sum only the paths on which at least one step was large.

Where the steps are rarely hit, M(c+iu)^T stays near a plateau and delta is a small difference.
Q = Q_0 + Q_1 by the smooth weight chi(x) = erfc(-kappa (x - x_s))/2, with Q_1 = chi Q the large
steps (docs, Section 5). With that split,

    delta = H(Q^T - Q_0^T as numerator) + H_0,   0 <= H_0 <= kappa(a) M_0(a)^T e^{-a eps},

and M^T - M_0^T = M_0^T expm1(T log1p(M_1/M_0)) keeps its relative accuracy and decays in u as M_1
does (docs, Section 5). H_0 has no far tail, so where Chernoff's bound of it is not small enough it
is summed at a saddle point of its own (docs, Section 5.3).

Where to split is chosen on the coarse real grid, by upper sums that bound: a choice may be poor but
never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from userdp.accounting.contour.coarse_grid import (
    RATIOS,
    TURN,
    Chernoff,
    GridTooLarge,
    Side,
    Split,
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
from userdp.accounting.contour.moment_function import EPS, SplitLine, make_split_line, widened
from userdp.accounting.contour.privacy_loss import Floats, log1p
from userdp.accounting.contour.trapezoidal_sum import Contour, Nodes, power_at_nodes

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


def lengthened(side: Side, split: Split, more: float) -> Split:
    """The same weight on x up to ``more`` beyond where the mass ends."""
    return split_at(side, split.place, split.rate, _stop(side, more))


def shortened(side: Side, split: Split, b: float) -> tuple[Split, float] | None:
    """(the weight where the small part lives, its mass beyond); None where it grows again."""
    x = side.x[split.domain]
    g = b * side.ell[split.domain] - 0.5 * x * x + split.not_chi.log
    main = int(np.searchsorted(x, split.place + 3.0 / split.rate))
    fallen = np.flatnonzero(g[main:] < float(g[: max(main, 1)].max()) - _DEEP)
    if not fallen.size:
        return None
    stop = main + int(fallen[0]) + 1
    return split_at(side, split.place, split.rate, stop), _small_mass(side, split, stop)


def _stop(side: Side, more: float) -> int:
    return int(min(side.inner.stop + int(more / side.h) + 1, side.x.size))


def _small_mass(side: Side, split: Split, stop: int) -> float:
    """An upper sum of T (1 - chi) Q on the domain beyond its first ``stop`` points."""
    beyond = slice(stop - 1, split.domain.stop)
    return numerator_mass(side, beyond, split.not_chi.log[stop - 1 :])


def log_small(side: Side, split: Split, a: Floats) -> Floats:
    """log of an upper bound of M_0(a)^T at the orders ``a``."""
    return log_moment(side, a, split.domain, split.not_chi)


def log_large(side: Side, split: Split, a: Floats) -> Floats:
    """log of an upper bound of M(a)^T - M_0(a)^T <= (T M_1/M) M^T, at the orders ``a``."""
    share = math.log(side.steps) + log_upper_share(side, split.domain, 1 + a, split.chi)
    out: Floats = log_moment(side, a, split.domain) + np.minimum(share, 0.0)
    return out


@dataclass(frozen=True, slots=True)
class Choice:
    """A split, and a bound of what it leaves out: Chernoff's, or None (it needs its own sum).

    ``side`` is the one that was asked for, on a grid fine enough for this weight.
    """

    side: Side
    split: Split
    rest: Chernoff | None
    leak: float


def choices(side: Side, epsilon: float, log_delta: float) -> Iterator[Choice]:
    """Where to split, best first: one with a Chernoff rest if there is one, else several."""
    if not epsilon > _LEAST_EPSILON:
        return
    without_rest = []
    for share in _SHARES_OF_EPSILON:
        try:
            fine, split = _split(side, share * epsilon)
        except GridTooLarge:
            continue
        if _hits(fine, split) > _MOST_HITS:
            break
        rest, leak = _rest(fine, split, share * epsilon, epsilon)
        if math.exp(rest.log_delta(epsilon)) + leak <= LEFT_OUT * math.exp(log_delta):
            yield Choice(fine, split, rest, leak)
            return
        without_rest.append(Choice(fine, split, None, 0.0))
    yield from without_rest


def _split(side: Side, loss_at_most: float) -> tuple[Side, Split]:
    """x_s five widths 1/kappa to the left of where one step alone loses ``loss_at_most``.

    With it the same side, on a grid on which sums with this weight are upper sums.
    """
    stop = _stop(side, 1.5)
    hit = min(int(np.searchsorted(side.ell[:stop], loss_at_most)), stop - 1)
    # chi should turn on a scale on which the loss grows by a part of itself
    steep = float(side.slope[hit] / max(side.ell[hit], 1e-300))
    rate = min(max(4.0 * steep, _LEAST_RATE), _MOST_RATE)
    rate = TURN / min(TURN / rate, strip_height(side, slice(0, stop)))
    fine = on_finer_grid(side, _TURN_A_POINT / rate)
    return fine, split_at(fine, float(side.x[hit]) - _BACK / rate, rate, _stop(fine, 1.5))


def _hits(side: Side, split: Split) -> float:
    """Expected number of large steps."""
    log_chance = float(log_upper_sum(side, split.domain, np.ones(1), split.chi)[0])
    return side.steps * math.exp(min(log_chance, 0.0))


def _rest(side: Side, split: Split, loss_at_most: float, epsilon: float) -> tuple[Chernoff, float]:
    """Bounds of H_0: (all steps lose at most ``loss_at_most``, some step loses more yet is small).

    The second is the numerator mass of such paths (docs, eq. 19).
    """
    ell = side.ell[split.domain]
    stop = min(int(np.searchsorted(ell, loss_at_most)) + 1, ell.size)
    weight = Weight(split.not_chi.log[:stop], split.rate)
    a = _REST_ORDERS / epsilon
    rest = Chernoff(a, log_moment(side, a, slice(0, stop), weight) + log_kappa(a))
    return rest, _small_mass(side, split, stop)


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
    size, c, split = math.inf, 1.0, choice.split
    for penalty, more in enumerate(_EXTENSIONS):
        longer = lengthened(side, choice.split, more)
        order, its_size = _abscissa(side, longer, epsilon, log_delta)
        if its_size + 0.5 * penalty < size:
            size, c, split = its_size + 0.5 * penalty, order, longer
    line = make_split_line(side, split, 1.0 + c)
    if not _splittable(side, line):
        return None
    a = c * RATIOS
    log_mass = min(0.0, float(log_large(side, split, np.zeros(1))[0]))
    bounds = Chernoff(a, log_large(side, split, a) + log_kappa(a), log_mass)

    def log_tail(u: float) -> float:
        return _log_tail(side, line, u)

    # a tail that is a tenth of delta still gives a bracket; beyond, it is not worth its second
    limits = _Limits(20.0 / epsilon, _MOST_NODES, _MOST_WORK, accepted=-_LOG_SHARE - 2.0)
    spacing = _spacing(side, line, bounds, c, epsilon, log_delta, log_tail, limits)
    if spacing is None:
        return None
    at, log_m = spacing
    small = power_at_nodes(side, line.small, line.ell, at)
    m0, error0 = small.value, small.error
    m1 = at.sums(line.large.weights, line.ell)
    weight = np.abs(line.large.weights)
    fixed1 = line.large.defect + EPS * 32.0 * float(weight.sum())
    error1 = fixed1 + 8 * EPS * (1 + c + at.u) * float(weight @ np.abs(line.ell))
    ratio = m1 / np.where(m0 == 0, 1e-300, m0)
    hits = side.steps * log1p(ratio)
    # relative error of 1 + m1/m0; its logarithm errs by at most -log(1 - x), x < 1
    x = (error1 + np.abs(ratio) * error0) / np.maximum(np.abs(m0), 1e-300)
    x = x / np.maximum(np.abs(1 + ratio), 1e-300)
    growth_hits = side.steps * -np.log1p(-np.minimum(2 * x, 1 - 1e-16))
    if not float(hits.real.max()) < _MOST_LOG or not float(small.log.real.max()) < _MOST_LOG:
        return None  # also where one of them is not a number
    value = np.exp(small.log) * np.expm1(hits)
    growth_hits += EPS * 8 * np.abs(hits)
    # |M_0'^T (e^v' - 1) - M_0^T (e^v - 1)|: first the factor M_0^T, then e^v (docs, eq. 14)
    with np.errstate(divide="ignore"):
        log_size = np.log(np.abs(value))
    slop = widened(log_size, small.growth)
    with np.errstate(over="ignore", invalid="ignore"):
        slop += np.exp(small.growth) * widened(small.log.real + hits.real, growth_hits)
        # where a step's M is lost in its allowances, the sizes themselves are the better bound
        log_most = side.steps * np.log(np.abs(m0 + m1) + error0 + error1) + 1e-9
        log_most_small = side.steps * np.log(np.abs(m0) + error0) + 1e-9
        most = np.exp(log_most) + np.exp(log_most_small) + np.exp(log_size)
    slop = np.fmin(slop, most)
    if not bool(np.isfinite(slop).all()):
        return None  # the allowances say nothing here
    tail, leak = log_tail(at.end), choice.leak
    return Nodes(side, at, value, slop, log_m, bounds, tail, epsilon, rest=rest, leak=leak)


def small_nodes(choice: Choice, epsilon: float, log_delta: float) -> Nodes | None:
    """Nodes of H_0, precise enough for a total near exp(log_delta); None where it is too wide."""
    side, split = choice.side, choice.split
    orders = _SMALL_ORDERS / epsilon
    size = log_small(side, split, orders) - orders * epsilon - np.log(orders * (1 + orders))
    c = float(orders[int(size.argmin())])
    short = shortened(side, split, 1 + c)
    if short is None or math.log(max(short[1], 1e-300)) > log_delta + math.log(LEFT_OUT):
        return None
    split, leak = short
    line = make_split_line(side, split, 1 + c, of_small=True)
    if not line.small.value > 1e-290:
        return None
    a = c * RATIOS
    bounds = Chernoff(a, log_small(side, split, a) + log_kappa(a))

    def log_tail(u: float) -> float:
        return side.steps * line.small.log_bound(u)

    limits = _Limits(c, _MOST_SMALL_NODES, _MOST_SMALL_WORK, accepted=0.0)
    spacing = _spacing(side, line, bounds, c, epsilon, log_delta, log_tail, limits)
    if spacing is None:
        return None
    at, log_m = spacing
    power = power_at_nodes(side, line.small, line.ell, at)
    value, slop = np.exp(power.log), widened(power.log.real, power.growth)
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
    side: Side,
    line: SplitLine,
    bounds: Chernoff,
    c: float,
    epsilon: float,
    log_delta: float,
    log_tail: Callable[[float], float],
    limits: _Limits,
) -> tuple[Contour, float] | None:
    """(the nodes, K(c) of all steps), such that excess and tail do not matter.

    None where the tail is larger than ``limits`` accepts.
    """
    periods = np.geomspace(2.0 / c, 400.0 / c, 160)
    h = 2 * math.pi / bounds.shortest_period(c, epsilon, periods, log_delta + _LOG_SHARE)
    log_m = side.steps * line.log_m
    wanted = log_delta + _LOG_SHARE - (log_m - c * epsilon)
    limit = h * min(limits.nodes, limits.work / line.ell.size)
    u = min(limits.start, limit)
    while (missing := log_tail(u) - math.log(math.pi * u) - wanted) > 0 and u < limit:
        u *= 1.15
    return (Contour(c, h, math.ceil(u / h) + 1), log_m) if missing <= limits.accepted else None


def _abscissa(side: Side, split: Split, epsilon: float, log_delta: float) -> tuple[float, float]:
    """(c, log of the integrand's size): least size, if the cut at the right end is harmless."""
    orders = _ORDERS / epsilon
    size = log_large(side, split, orders) - orders * epsilon - np.log(orders * (1 + orders))
    x, ell = side.x[split.domain], side.ell[split.domain]
    edge = (1 + orders) * ell[-1] - 0.5 * x[-1] ** 2 + math.log(3 * side.steps)
    bad = edge - orders * epsilon - np.log(2 * orders) > log_delta + _LOG_SHARE
    size = np.where(bad, size + 1e6, size)
    k = int(size.argmin())
    return float(orders[k]), float(size[k])


def _log_tail(side: Side, line: SplitLine, u: float) -> float:
    """log of a bound of |M^T - M_0^T| / M(c)^T for all u' >= u (docs, Section 5).

    The difference is at most T |M_1| / B times B^T with B >= |M|, |M_0|.
    """
    large = line.large.log_bound(u)
    both = min(0.0, float(np.logaddexp(line.small.log_bound(u), large)))
    return math.log(side.steps) + min(large - both, 0.0) + side.steps * both


def _splittable(side: Side, line: SplitLine) -> bool:
    """Whether M^T / M_0^T is a double at u = 0, where it is largest."""
    small, large = line.small.value, line.large.value
    if not small > 1e-290 or not large > -0.5 * small:
        return False  # hardly a step is small, or rounding is all there is: nothing to split
    return side.steps * math.log1p(large / small) < _MOST_LOG
