r"""delta(epsilon) and epsilon(delta) of one direction, from the nodes of one or more attempts."""

from __future__ import annotations

import math

import numpy as np

from userdp.accounting.contour.attempts import TINY, Target, attempts, centre, reference_delta
from userdp.accounting.contour.bounds import Bounds
from userdp.accounting.contour.chernoff import Chernoff, chernoff
from userdp.accounting.contour.closed import (
    gaussian_delta,
    gaussian_epsilon,
    single_step_delta,
    single_step_epsilon,
)
from userdp.accounting.contour.phases import Phase
from userdp.accounting.contour.side import GridTooLarge, make_side
from userdp.accounting.contour.trapezoid import Nodes, evaluate

FARTHEST_ADD = 3000.0  # beyond, e^epsilon times a mass of e^-5000 might be felt (docs, Section 2)
_REMEMBERED = 8  # sets of nodes
WIDTH = 8e-7  # an attempt this narrow (relative) ends the search


def left_out(nodes: Nodes, epsilon: float) -> float:
    """An upper bound of the delta of the paths that the nodes do not sum (docs, eq. 19)."""
    if nodes.rest is None:
        return nodes.leak
    if isinstance(nodes.rest, Nodes):
        return nodes.leak + left_out(nodes.rest, epsilon)
    return nodes.leak + nodes.rest.most_delta(epsilon)


def delta_at(nodes: Nodes, epsilon: float) -> Bounds:
    """delta(epsilon) of the nodes' direction, dropped mass included (docs, eq. 15)."""
    piece = evaluate(nodes, epsilon)
    upper, lower = 1.0, 0.0
    if not isinstance(nodes.rest, Nodes):
        upper = nodes.bounds.most_delta(epsilon)
    if piece.log_scale < 690.0 and piece.upper < math.inf:
        scale = math.exp(piece.log_scale)
        # a lower bound of -infinity times a scale of 0 is not a number, and no bound either
        lower = piece.lower * scale * (1 - 1e-15) if piece.lower > 0 else 0.0
        upper = min(upper, piece.upper * scale * (1 + 1e-15))
    upper = min(upper + nodes.side.dropped + left_out(nodes, epsilon), 1.0)
    return Bounds(min(max(lower, 0.0), upper), upper)


def delta_bounds(
    phases: tuple[Phase, ...], epsilon: float, *, remove: bool, enough: float = 0.0
) -> Bounds:
    """Certified delta(epsilon) of one direction; may stop early at an upper bound <= ``enough``."""
    return Curve(phases, remove=remove).delta(epsilon, enough=enough)


class Curve:
    """delta of one direction at many epsilons; nodes are kept for the next epsilon."""

    def __init__(self, phases: tuple[Phase, ...], *, remove: bool) -> None:
        self._phases = phases
        self._remove = remove
        self._mu = gaussian_mu(phases)
        self._least = math.inf if remove else least_loss(phases)
        self._known: list[Nodes] = []

    def delta(self, epsilon: float, *, enough: float = 0.0) -> Bounds:
        """Certified delta(epsilon); may stop early at an upper bound <= ``enough``."""
        phases, remove = self._phases, self._remove
        if self._mu is not None:
            return gaussian_delta(self._mu, epsilon)
        if not remove and epsilon >= -self._least:
            return Bounds(0.0, 0.0)
        try:
            found = self._mixed(epsilon, enough)
        except GridTooLarge:
            found = Bounds(0.0, gaussian_delta(dominating_mu(phases), epsilon).upper)
        upper = min(found.upper, participation(phases))
        if not remove and epsilon > FARTHEST_ADD:  # components below e^-5000 are missing from Q
            return Bounds(0.0, upper)
        return Bounds(min(found.lower, upper), upper)

    def _mixed(self, epsilon: float, enough: float) -> Bounds:
        phases, remove = self._phases, self._remove
        if len(phases) == 1 and phases[0].count == 1:
            closed = single_step_delta(phases[0], epsilon, remove=remove)
            if closed is not None:
                return closed
        best = Bounds(0.0, 1.0)
        self._known.sort(key=lambda nodes: abs(nodes.epsilon - epsilon))
        for nodes in self._known[:2]:
            best = best.meet(delta_at(nodes, epsilon))
            if best.upper - best.lower <= WIDTH * best.lower or best.upper <= enough:
                return best
        if enough > 0:
            whole = total_variation(phases, enough)
            if whole <= enough:
                return Bounds(0.0, whole)
            bounds, dropped = plain_chernoff(phases, remove, enough)
            cheap = bounds.most_delta(epsilon) + dropped
            if cheap <= enough:
                return Bounds(0.0, cheap)
        reference = reference_delta(phases, remove=remove, epsilon=epsilon)
        target = Target(epsilon, None, TINY if reference is None else reference)
        for nodes in attempts(phases, target, remove=remove):
            best = best.meet(delta_at(nodes, epsilon))
            if best.upper - best.lower <= WIDTH * best.lower or best.upper <= enough:
                self._known = [nodes, *self._known[: _REMEMBERED - 1]]
                return best
        bounds, dropped = plain_chernoff(phases, remove, target.reference)
        return best.meet(Bounds(0.0, min(bounds.most_delta(epsilon) + dropped, 1.0)))


def participation(phases: tuple[Phase, ...]) -> float:
    """An upper bound of the chance of any participation, hence of every delta (docs, eq. 20)."""
    hit = math.fsum(ph.count * (_hit(ph) if ph.shifts[0] == 0 else 1.0) for ph in phases) * (
        1 + 1e-12
    )
    return min(hit, 1.0)


def _hit(phase: Phase) -> float:
    """1 - p_0, without cancelling where it is small."""
    if phase.log_probabilities[0] > -0.1:
        return math.fsum(math.exp(w) for w in phase.log_probabilities[1:])
    return -math.expm1(phase.log_probabilities[0])


def total_variation(phases: tuple[Phase, ...], enough: float) -> float:
    """An upper bound of delta(0) >= delta(epsilon): the sum of the steps' own (docs, eq. 20).

    Exact to rounding only where it may come below ``enough``; 1 otherwise.
    """
    hit = participation(phases)
    if hit <= enough or hit > 1e3 * enough:
        return hit
    total = 0.0
    for ph in phases:
        found = single_step_delta(ph, 0.0, remove=True)
        if found is None:
            return min(hit, 1.0)
        total += ph.count * found.upper
    return min(hit, total * (1 + 1e-12), 1.0)


def plain_chernoff(
    phases: tuple[Phase, ...], remove: bool, reference: float
) -> tuple[Chernoff, float]:
    """Chernoff bounds that always exist, and the mass dropped for them."""
    side = make_side(phases, remove=remove, mass_budget=1e-3 * reference)
    found = chernoff(side, tuple(s.inner for s in side.steps), np.geomspace(1e-4, 1e8, 240))
    return found, side.dropped


def gaussian_mu(phases: tuple[Phase, ...]) -> float | None:
    """mu of the equivalent single Gaussian if every phase has one certain shift, else None."""
    if not all(ph.is_gaussian for ph in phases):
        return None
    return math.sqrt(
        math.fsum(ph.count * (ph.shifts[0] / ph.noise_multiplier) ** 2 for ph in phases)
    )


def dominating_mu(phases: tuple[Phase, ...]) -> float:
    """mu of a Gaussian that is easier to tell apart: every step has its largest shift.

    Q^T is a mixture, over the sequences of shifts, of Gaussians of norm at most mu; the
    hockey-stick divergence is jointly convex and grows with mu (docs, eq. 21).
    """
    return math.sqrt(
        math.fsum(ph.count * (ph.shifts[-1] / ph.noise_multiplier) ** 2 for ph in phases)
    )


def least_loss(phases: tuple[Phase, ...]) -> float:
    """The infimum of the total loss: sum T log p_0, or -inf where a phase has no zero shift."""
    if any(ph.shifts[0] > 0 for ph in phases):
        return -math.inf
    return math.fsum(ph.count * ph.log_probabilities[0] for ph in phases) * (1 + 1e-12)


def epsilon_bounds(phases: tuple[Phase, ...], delta: float, *, remove: bool) -> Bounds:
    """Certified epsilon(delta) of one direction: exactly 0 where delta(0) <= delta."""
    mu = gaussian_mu(phases)
    if mu is not None:
        return gaussian_epsilon(mu, delta)
    if len(phases) == 1 and phases[0].count == 1:
        closed = single_step_epsilon(phases[0], delta, remove=remove)
        if closed is not None:
            return closed
    if total_variation(phases, delta) <= delta:
        return Bounds(0.0, 0.0)
    try:
        return _epsilon_mixed(phases, delta, remove)
    except GridTooLarge:
        return Bounds(0.0, gaussian_epsilon(dominating_mu(phases), delta).upper)


def _epsilon_mixed(phases: tuple[Phase, ...], delta: float, remove: bool) -> Bounds:
    log_delta = math.log(delta)
    best = Bounds(0.0, math.inf)
    for nodes in attempts(phases, Target(None, log_delta, delta), remove=remove):
        found = _solve(nodes, delta)
        if found.upper == 0:
            return found
        best = best.meet(found)
        if best.upper - best.lower <= WIDTH * max(best.upper, 1e-3):
            return best
    best = best.meet(Bounds(0.0, gaussian_epsilon(dominating_mu(phases), delta).upper))
    bounds, dropped = plain_chernoff(phases, remove, delta)
    left = delta - dropped - bounds.beyond
    if left > 0:
        cheap = float(((bounds.value - math.log(left)) / bounds.a).min())
        best = best.meet(Bounds(0.0, max(cheap, 0.0) * (1 + 1e-12)))
    return best


def _solve(nodes: Nodes, delta: float) -> Bounds:
    """The epsilons where the upper and the lower bound of ``nodes`` cross ``delta``."""
    at_zero = delta_at(nodes, 0.0)
    if at_zero.upper <= delta:
        return Bounds(0.0, 0.0)
    found = centre(nodes, math.log(delta), nodes.epsilon)
    epsilon = nodes.epsilon if found is None else found
    piece = evaluate(nodes, epsilon)
    sound = piece.middle > 0 and piece.slope < 0
    rate = -piece.middle / piece.slope if sound else 1 / nodes.c
    here = delta_at(nodes, epsilon)
    above = max(math.log(here.upper / delta), 0.0)
    upper = _outwards(nodes, delta, epsilon, rate * above, 1)
    below = max(math.log(delta / here.lower), 0.0) if here.lower > 0 else 1.0
    lower = _outwards(nodes, delta, epsilon, rate * below, -1)
    return Bounds(lower, upper)


def _outwards(nodes: Nodes, delta: float, centre: float, move: float, way: int) -> float:
    """Step out from ``centre`` until the certified bound is on the right side of ``delta``."""
    move = move * 1.02 + 1e-15 * max(centre, 1e-6)
    for _ in range(60):
        at = centre + way * move
        if at <= 0 and way < 0:
            return 0.0
        found = delta_at(nodes, at)
        if way > 0 and found.upper <= delta:
            return at
        if way < 0 and found.lower >= delta:
            return at
        move *= 2.0
    return math.inf if way > 0 else 0.0
