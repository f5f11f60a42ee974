r"""The ways to compute one direction; each gives a certified bracket, so all may be intersected.

* *cut*: x is cut where its mass ends. Keeps M small, but the tilted integrand must have decayed
  at the cut.
* *large*: only paths with a large step (docs, Section 5); for few expected participations.
* *far*: only components are cut; the far ones pull the saddle point down (docs, Section 4).

How many nodes there are, and how far apart, is planned here too. No plan is trusted: a poor choice
makes the bracket wide, never wrong, since `trapezoidal_sum.evaluate` bounds the excess and the tail
again at the epsilon in question.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from userdp.accounting.certified_search import bisect
from userdp.accounting.contour.coarse_grid import (
    LOG_SQRT_2PI,
    RATIOS,
    GridTooLarge,
    Saddle,
    Side,
    chernoff,
    log_payoff,
    make_side,
    saddle_at_delta,
    saddle_at_epsilon,
)
from userdp.accounting.contour.few_large_steps import choices, large_nodes, small_nodes
from userdp.accounting.contour.moment_function import Line, UnsoundStrip, make_line
from userdp.accounting.contour.privacy_loss import Pair
from userdp.accounting.contour.trapezoidal_sum import (
    Contour,
    Nodes,
    compute_nodes,
    estimate,
    evaluate,
)

_LOG_SHARE = math.log(1e-9)  # excess and tail, each relative to delta

# v c (c+1) of the extra Gaussian, which is about what it costs relative to delta (docs, eq. 18);
# so much that a few of its terms stay below the width of 1e-6 that is aimed at.
_SMOOTHING_SHARE = 1.5e-7
_MAX_WORK = 5e8  # complex multiply-adds in one set of nodes
MOST_NODES = 1_000_000


def _log_tail(side: Side, line: Line, u: float, smoothing: float) -> float:
    """log of a bound of |M(c+iu')/M(c)|^T for all u' >= u (docs, eq. 12)."""
    return -0.5 * smoothing * u * u + side.steps * min(line.whole.log_bound(u), 0.0)


def _periods(saddle: Saddle) -> np.ndarray:
    """Candidates for the period, from one that is surely too short to a very long one.

    The loss has its mass within a few spreads of epsilon, and e^{cy} must fall by e^-25 and delta.
    """
    spread = math.sqrt(saddle.curvature)
    longest = max((25.0 - min(saddle.log_delta, 0.0)) / saddle.c, 5 * spread)
    return np.geomspace(min(2.0 * spread, 0.5 * longest), 40 * longest, 200)


def _reach(
    side: Side, line: Line, saddle: Saddle, share: float, log_d: float
) -> tuple[float, float]:
    """(U, smoothing) such that nodes beyond U do not matter; smoothing only where it is needed."""
    c = saddle.c
    v = share / (c * (c + 1))
    k2 = max(saddle.curvature - 1 / c**2 - 1 / (c + 1) ** 2, 1e-300)
    u = min(5.5 / math.sqrt(k2), 1e3 * (c + 1))
    while u < math.sqrt(2 * 27.0 / v):
        if _log_tail(side, line, u, 0.0) <= _LOG_SHARE + log_d + math.log(math.pi * u):
            return u, 0.0
        u *= 1.12
    for exponent in (20.0, 27.0, 35.0, 50.0):
        u = math.sqrt(2 * exponent / v)
        if _log_tail(side, line, u, v) <= _LOG_SHARE + log_d + math.log(math.pi * u):
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
    line = make_line(side, side.b(c))
    spoiled = side.steps * line.whole.defect
    log_d = log_payoff(c, saddle.curvature) if log_share is None else log_share
    if spoiled > 1e-2 or math.log(spoiled / (2 * c)) > log_d - 3:
        return None
    bounds = chernoff(side, line.domain, c * RATIOS)
    wanted = saddle.log_delta + _LOG_SHARE - 0.2  # a little more: epsilon may move from here
    period = bounds.shortest_period(c, saddle.epsilon, _periods(saddle), wanted)
    h = 2 * math.pi / period
    share = _SMOOTHING_SHARE
    while True:
        reach, smoothing = _reach(side, line, saddle, share, log_d)
        n = math.ceil(reach / h) + 1
        if n * line.ell.size <= _MAX_WORK and n <= most_nodes:
            break
        if most_nodes < MOST_NODES:
            return None
        share *= 4.0
    if smoothing > 0:  # the extra Gaussian is part of what is summed, so of its excess too
        bounds = chernoff(side, line.domain, c * RATIOS, smoothing)
    tail = _log_tail(side, line, n * h, smoothing)
    planned_for = max(saddle.epsilon, 0.0)
    return compute_nodes(side, line, Contour(c, h, n), bounds, tail, planned_for, smoothing)


# Nodes. A way that needs more than a few is tried after the others, since one of them may do with
# less; *far*, whose saddle point lies low, is granted some more before *cut* is granted many.
_FEW, _SOME = 20_000, 200_000
TINY = 1e-290  # below this, delta is only said to be below this

# Numerator mass that may be dropped, relative to delta: both far below the width of 1e-6 that is
# aimed at. The later ways may drop more, since they answer where less would cost too much.
_FIRST_SHARE, _SHARE = 2e-9, 2e-8


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked: delta at ``epsilon``, or epsilon at ``log_delta``. One of them is None.

    ``reference``: delta, or a rough guess of it.
    """

    epsilon: float | None
    log_delta: float | None
    reference: float


def _locate(side: Side, target: Target, start: float) -> Saddle | None:
    if target.epsilon is not None:
        return saddle_at_epsilon(side, target.epsilon, start)
    assert target.log_delta is not None
    least = saddle_at_epsilon(side, 0.0, start)
    return None if least is None else saddle_at_delta(side, target.log_delta, least)


def _place(nodes: Nodes, target: Target, epsilon: float) -> tuple[float, float] | None:
    """(epsilon, log delta) on the uncertified curve of ``nodes``, near ``epsilon``."""
    if target.epsilon is not None:
        piece = evaluate(nodes, target.epsilon)
        if not piece.middle > 0:
            return None
        return target.epsilon, math.log(piece.middle) + piece.log_scale
    assert target.log_delta is not None
    crossing = centre(nodes, target.log_delta, epsilon)
    return None if crossing is None else (crossing, target.log_delta)


def centre(nodes: Nodes, log_delta: float, epsilon: float) -> float | None:
    """The epsilon >= 0 where the uncertified sum meets exp(log_delta): Newton in log delta."""
    for turn in range(60):
        middle, slope, log_scale = estimate(nodes, epsilon)
        if not middle > 0 or not slope < 0:
            return None
        gap = math.log(middle) + log_scale - log_delta
        limit = max(2 / nodes.at.c, 0.5 * epsilon)
        moved = max(epsilon + min(max(-gap * middle / slope, -limit), limit), 0.0)
        # the sum's own rounding may keep Newton's steps from ever getting smaller
        enough = 1e-13 if turn < 8 else 1e-10
        if abs(moved - epsilon) <= enough * max(moved, 1e-3):
            return moved
        epsilon = moved
    return epsilon


def _single_steps(side: Side, target: Target) -> tuple[float, float] | None:
    """(epsilon, log delta) if one step alone mattered: delta = T delta_1(epsilon)."""
    ell, x = side.ell[side.inner], side.x[side.inner]

    def log_delta(epsilon: float) -> float:
        over = ell > epsilon
        gain = np.exp(ell[over] - 0.5 * x[over] ** 2) * -np.expm1(epsilon - ell[over])
        total = side.steps * side.h * math.exp(-LOG_SQRT_2PI) * float(gain.sum())
        return math.log(total) if total > 0 else -math.inf

    if target.epsilon is not None:
        return target.epsilon, log_delta(target.epsilon)
    assert target.log_delta is not None
    wanted, low, high = target.log_delta, math.log(1e-12), math.log(1e6)
    if log_delta(math.exp(low)) <= wanted:
        return None
    log_epsilon = bisect(lambda t: log_delta(math.exp(t)) > wanted, high, low, absolute=1e-15)
    return math.exp(log_epsilon), wanted


def _cut(pair: Pair, target: Target, remove: bool, most: int, seen: set[Saddle]) -> Iterator[Nodes]:
    side = make_side(pair, remove=remove, mass_budget=_FIRST_SHARE * target.reference)
    saddle = _locate(side, target, 1.0)
    if saddle is None:
        return
    yield from _planned(side, saddle, target, most, seen)
    gentle = _gentle(side, saddle)
    if gentle is not saddle:
        yield from _planned(side, gentle, target, most, seen)


def _gentle(side: Side, saddle: Saddle) -> Saddle:
    """The same place with c lowered until the tilted integrand has decayed where x is cut."""
    c = saddle.c
    for _ in range(40):
        g = side.b(c) * side.ell[side.inner] - 0.5 * side.x[side.inner] ** 2
        edge = float(g[-1] if side.remove else g[0])
        # at the cut e^-30 of the integrand's top: below the rounding of the sum
        if edge - float(g.max()) + math.log(side.steps) < -30.0:
            break
        c *= 0.8
    return saddle if c == saddle.c else Saddle(c, saddle.epsilon, saddle.log_delta, 2 / (c * c))


def _planned(
    side: Side, saddle: Saddle, target: Target, most: int, seen: set[Saddle]
) -> Iterator[Nodes]:
    """Nodes for the saddle; then, if asked again, nodes for where the answer really lies.

    ``seen``: saddles whose nodes fitted within an earlier, lower limit; they would come out again.
    """
    if saddle in seen:
        return
    nodes = plan_nodes(side, saddle, most)
    if nodes is None:
        return
    seen.add(saddle)
    yield nodes
    epsilon, log_delta = max(saddle.epsilon, 0.0), saddle.log_delta
    for _ in range(2):
        place = _place(nodes, target, epsilon)
        if place is None or _same(place, (epsilon, log_delta)):
            return
        epsilon, log_delta = place
        piece = evaluate(nodes, epsilon)
        if not piece.middle > 0:
            return
        planned = Saddle(saddle.c, epsilon, log_delta, saddle.curvature)
        nodes = plan_nodes(side, planned, most, math.log(piece.middle))
        if nodes is None:
            return
        yield nodes


def _large(pair: Pair, target: Target) -> Iterator[Nodes]:
    side = make_side(pair, remove=True, mass_budget=_SHARE * target.reference)
    place = _single_steps(side, target)
    for _ in range(5):
        if place is None or not place[0] > 0 or place[1] < math.log(TINY):
            return
        epsilon, before = place
        nodes = None
        for choice in choices(side, epsilon, place[1]):
            rest = choice.rest or small_nodes(choice, epsilon, place[1])
            if rest is not None:
                nodes = large_nodes(choice, epsilon, place[1], rest)
                break
        if nodes is None:
            return
        yield nodes
        place = _place(nodes, target, epsilon)
        if place is None or _same(place, (epsilon, before)):
            return


def _same(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether planning for one is as good as planning for the other."""
    near = abs(one[0] - other[0]) <= 0.02 * max(one[0], other[0])
    return near and abs(one[1] - other[1]) <= 0.02


def _far(pair: Pair, target: Target, most: int, seen: set[Saddle]) -> Iterator[Nodes]:
    budget = _SHARE * target.reference
    side = make_side(pair, remove=True, mass_budget=budget)
    saddle = _locate(side, target, 1.0)
    for _ in range(4):
        if saddle is None:
            return
        reach = saddle.c
        side = make_side(pair, remove=True, mass_budget=budget, reach_c=reach)
        saddle = _locate(side, target, reach)
        if saddle is not None and saddle.c <= 1.02 * reach:
            yield from _planned(side, saddle, target, most, seen)
            return


def attempts(pair: Pair, target: Target, *, remove: bool) -> Iterator[Nodes]:
    """Certified nodes, one way after the other; the caller stops when the bracket is narrow."""
    cut, far = set[Saddle](), set[Saddle]()  # each way has domains of its own
    ways = [_cut(pair, target, remove, _FEW, cut)]
    if remove:
        ways += [_large(pair, target), _far(pair, target, _SOME, far)]
    ways.append(_cut(pair, target, remove, MOST_NODES, cut))
    if remove:
        ways.append(_far(pair, target, MOST_NODES, far))
    for way in ways:
        with suppress(UnsoundStrip, GridTooLarge):  # then the next way answers
            yield from way


def reference_delta(pair: Pair, *, remove: bool, epsilon: float) -> float | None:
    """A rough delta(epsilon), for choosing what to drop; None where it is below ``TINY``.

    What may be dropped depends on delta and delta on what was dropped, so the reference comes down
    from 1e-9 until the estimate is not below it.
    """
    reference = 1e-9
    for _ in range(12):
        side = make_side(pair, remove=remove, mass_budget=_FIRST_SHARE * reference)
        saddle = saddle_at_epsilon(side, epsilon)
        estimates = [-math.inf if saddle is None else saddle.log_delta]
        if remove and (one := _single_steps(side, Target(epsilon, None, reference))) is not None:
            estimates.append(one[1])
        log_delta = max(estimates)
        if log_delta >= math.log(reference) - 1:
            return reference
        if reference <= TINY:
            return None
        next_one = (
            reference**2.5 if log_delta == -math.inf else 0.5 * math.exp(max(log_delta, -690.0))
        )
        reference = max(next_one, TINY)
    return reference
