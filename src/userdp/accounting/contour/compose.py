r"""delta(epsilon) and epsilon(delta) of one direction, from nodes; both directions together."""

from __future__ import annotations

import math
from dataclasses import dataclass

from userdp.accounting.contour.phases import Phase
from userdp.accounting.contour.plan import plan_nodes
from userdp.accounting.contour.saddle import Saddle, saddle_at_delta, saddle_at_epsilon
from userdp.accounting.contour.side import Side, make_side
from userdp.accounting.contour.trapezoid import Nodes, chernoff, evaluate

MASS_SHARE = 2e-9  # numerator mass that may be dropped, relative to delta
TINY = 1e-290  # below this, delta is only said to be below this


@dataclass(frozen=True, slots=True)
class Bounds:
    """lower <= truth <= upper of one direction."""

    lower: float
    upper: float
    note: str = ""


def _up(x: float) -> float:
    return math.nextafter(x * (1 + 4e-16), math.inf) if x > 0 else x


def delta_at(nodes: Nodes, epsilon: float) -> Bounds:
    """delta(epsilon) of the nodes' direction, dropped mass included."""
    piece = evaluate(nodes, epsilon)
    scale = math.exp(min(piece.log_scale, 700.0))
    lower = max(piece.lower * scale, 0.0) * (1 - 1e-15)
    upper = min(_up(piece.upper * scale + nodes.side.dropped), 1.0)
    cheap = nodes.bounds.log_delta(epsilon)
    upper = min(upper, _up(math.exp(cheap)) + nodes.side.dropped)
    return Bounds(min(lower, upper), upper)


def _sides(phases: tuple[Phase, ...], remove: bool, epsilon: float) -> tuple[Side, Saddle | None]:
    """A side whose dropped mass suits the delta found at ``epsilon``."""
    reference = 1e-12
    for _ in range(8):
        side = make_side(phases, remove=remove, mass_budget=MASS_SHARE * reference)
        saddle = saddle_at_epsilon(side, epsilon)
        if saddle is None:
            if reference <= TINY:
                return side, None
            reference = max(reference**3, TINY)
            continue
        found = math.exp(max(saddle.log_delta, -690.0))
        if found >= 0.5 * reference or reference <= TINY:
            return side, saddle
        reference = max(0.3 * found, TINY)
    return side, saddle


def delta_bounds(phases: tuple[Phase, ...], epsilon: float, *, remove: bool) -> Bounds:
    """Certified delta(epsilon) of one direction of a composition with mixed phases."""
    if not remove:
        least = _least_loss(phases)
        if epsilon >= -least:
            return Bounds(0.0, 0.0)
    side, saddle = _sides(phases, remove, epsilon)
    if saddle is None or saddle.log_delta < math.log(TINY):
        return Bounds(0.0, max(2 * TINY, 2 * side.dropped), "delta is below 1e-289")
    return delta_at(plan_nodes(side, saddle), epsilon)


def _least_loss(phases: tuple[Phase, ...]) -> float:
    """The infimum of the total loss: sum T log p_0, or -inf where a phase has no zero shift."""
    if any(ph.shifts[0] > 0 for ph in phases):
        return -math.inf
    return math.fsum(ph.count * ph.log_probabilities[0] for ph in phases) * (1 - 1e-12)


def epsilon_bounds(phases: tuple[Phase, ...], delta: float, *, remove: bool) -> Bounds:
    """Certified epsilon(delta) of one direction: 0 where delta(0) <= delta."""
    side = make_side(phases, remove=remove, mass_budget=MASS_SHARE * delta)
    zero = saddle_at_epsilon(side, 0.0)
    log_delta = math.log(delta)
    if zero is None:
        return Bounds(0.0, math.inf, "no saddle at epsilon 0")
    if zero.log_delta < log_delta + 0.7:
        if chernoff(side, zero.c).log_delta(0.0) < log_delta - 1e-6:
            return Bounds(0.0, 0.0)
        at_zero = delta_at(plan_nodes(side, zero), 0.0)
        if at_zero.upper <= delta:
            return Bounds(0.0, 0.0)
    saddle = saddle_at_delta(side, log_delta, zero)
    for _ in range(3):
        nodes = plan_nodes(side, saddle)
        found, centre = _solve(nodes, delta, saddle.epsilon)
        if found.upper - found.lower <= 5e-7 * max(found.upper, 1e-3):
            break
        better = saddle_at_epsilon(side, max(centre, 0.0), saddle.c)
        if better is None or abs(math.log(better.c / saddle.c)) < 0.02:
            break
        saddle = better
    return found


def _solve(nodes: Nodes, delta: float, epsilon: float) -> tuple[Bounds, float]:
    """The epsilons where the upper and the lower bound cross ``delta``."""
    for _ in range(30):  # Newton in log delta on the uncertified middle; delta is log-concave-ish
        piece = evaluate(nodes, epsilon)
        if not piece.middle > 0 or not piece.slope < 0:
            break
        rate = piece.slope / piece.middle
        gap = math.log(piece.middle) + piece.log_scale - math.log(delta)
        move = -gap / rate
        limit = 2 / nodes.c
        move = min(max(move, -limit), limit)
        epsilon = max(epsilon + move, 0.0)
        if abs(move) <= 1e-13 * max(epsilon, 1e-3):
            break
    centre = epsilon
    here = delta_at(nodes, centre)
    rate = 1 / max(nodes.c, 1e-300)
    if piece.slope < 0 < piece.middle:
        rate = -piece.middle / piece.slope
    above = max(math.log(here.upper / delta), 0.0) if here.upper > 0 else 0.0
    upper = _first(nodes, delta, centre, rate, above + 1e-15, True)
    below = math.log(delta / here.lower) if here.lower > 0 else 1.0
    lower = _first(nodes, delta, centre, rate, max(below, 0.0) + 1e-15, False)
    return Bounds(lower, upper), centre


def _first(
    nodes: Nodes, delta: float, centre: float, rate: float, gap: float, upwards: bool
) -> float:
    """Step out from ``centre`` until the certified bound is on the right side of ``delta``."""
    move = gap * rate * 1.02 + 1e-16 * centre
    for _ in range(60):
        at = centre + move if upwards else centre - move
        if at <= 0 and not upwards:
            return 0.0
        found = delta_at(nodes, at)
        if upwards and found.upper <= delta:
            return at
        if not upwards and found.lower >= delta:
            return at
        move *= 2.0
    return math.inf if upwards else 0.0
