r"""Certified delta(epsilon) and epsilon(delta) of a composition: the contour accountant's answers.

Each direction asks for one attempt after the other until its bracket is narrow. Derivation and
proofs: docs/accounting.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from userdp.accounting.bracket import Bracket
from userdp.accounting.contour.attempts import TINY, Target, attempts, centre, reference_delta
from userdp.accounting.contour.closed import (
    Bounds,
    gaussian_delta,
    gaussian_epsilon,
    single_step_delta,
    single_step_epsilon,
)
from userdp.accounting.contour.losses import Phase
from userdp.accounting.contour.nodes import Nodes, evaluate
from userdp.accounting.contour.side import Chernoff, GridTooLarge, chernoff, make_side
from userdp.accounting.roots import outwards
from userdp.core.vocabulary import require_delta, require_epsilon

ACCOUNTANT = "contour"
_WIDTH = 1e-6  # relative; a wider bracket says so
_LEAST_EPSILON = 1e-3  # below it, the width of epsilon is measured absolutely
_FARTHEST_ADD = 3000.0  # beyond, e^epsilon times a mass of e^-5000 might be felt (docs, Section 7)
_ENOUGH = 8e-7  # an attempt this narrow (relative) ends the search
_ORDERS = np.geomspace(1e-4, 1e8, 240)  # of Chernoff's bound where nothing else answers


def _left_out(nodes: Nodes, epsilon: float) -> float:
    """An upper bound of the delta of the paths that the nodes do not sum (docs, eq. 19)."""
    if nodes.rest is None:
        return nodes.leak
    if isinstance(nodes.rest, Nodes):
        return nodes.leak + _left_out(nodes.rest, epsilon)
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
    upper = min(upper + nodes.side.dropped + _left_out(nodes, epsilon), 1.0)
    return Bounds(min(max(lower, 0.0), upper), upper)


def delta_bounds(
    phases: tuple[Phase, ...], epsilon: float, *, remove: bool, enough: float = 0.0
) -> Bounds:
    """Certified delta(epsilon) of one direction; may stop early at an upper bound <= ``enough``."""
    mu = gaussian_mu(phases)
    if mu is not None:
        return gaussian_delta(mu, epsilon)
    if not remove and epsilon >= _largest_add_loss(phases):
        return Bounds(0.0, 0.0)
    try:
        bounds = _mixed_delta(phases, epsilon, remove, enough)
    except GridTooLarge:
        bounds = Bounds(0.0, gaussian_delta(_dominating_mu(phases), epsilon).upper)
    upper = min(bounds.upper, _participation(phases))
    if not remove and epsilon > _FARTHEST_ADD:
        return Bounds(0.0, upper)
    return Bounds(min(bounds.lower, upper), upper)


def _mixed_delta(phases: tuple[Phase, ...], epsilon: float, remove: bool, enough: float) -> Bounds:
    """The cheap answers first: a closed form, then bounds without a sum."""
    if len(phases) == 1 and phases[0].count == 1:
        closed = single_step_delta(phases[0], epsilon, remove=remove)
        if closed is not None:
            return closed
    if enough > 0:
        whole = _total_variation(phases, enough)
        if whole <= enough:
            return Bounds(0.0, whole)
        cheap = _plain_chernoff(phases, remove, enough).most_delta(epsilon)
        if cheap <= enough:
            return Bounds(0.0, cheap)
    best = Bounds(0.0, 1.0)
    reference = reference_delta(phases, remove=remove, epsilon=epsilon) or TINY
    for nodes in attempts(phases, Target(epsilon, None, reference), remove=remove):
        best = best.meet(delta_at(nodes, epsilon))
        if best.upper - best.lower <= _ENOUGH * best.lower or best.upper <= enough:
            return best
    cheap = _plain_chernoff(phases, remove, reference).most_delta(epsilon)
    return best.meet(Bounds(0.0, min(cheap, 1.0)))


def _participation(phases: tuple[Phase, ...]) -> float:
    """An upper bound of the chance of any participation, hence of every delta (docs, eq. 20)."""
    hit = math.fsum(ph.count * (_hit(ph) if ph.shifts[0] == 0 else 1.0) for ph in phases)
    return min(hit * (1 + 1e-12), 1.0)


def _hit(phase: Phase) -> float:
    """1 - p_0, without cancelling where it is small."""
    if phase.log_probabilities[0] > -0.1:
        return math.fsum(math.exp(w) for w in phase.log_probabilities[1:])
    return -math.expm1(phase.log_probabilities[0])


def _total_variation(phases: tuple[Phase, ...], enough: float) -> float:
    """An upper bound of delta(0) >= delta(epsilon): the sum of the steps' own (docs, eq. 20).

    Exact to rounding only where it may come below ``enough``: a step's delta(0) is seldom less
    than a thousandth of its chance of participation, and costs a closed form.
    """
    hit = _participation(phases)
    if hit <= enough or hit > 1e3 * enough:
        return hit
    total = 0.0
    for ph in phases:
        one_step = single_step_delta(ph, 0.0, remove=True)
        if one_step is None:
            return hit
        total += ph.count * one_step.upper
    return min(hit, total * (1 + 1e-12))


def _plain_chernoff(phases: tuple[Phase, ...], remove: bool, reference: float) -> Chernoff:
    """Chernoff bounds that always exist; ``beyond`` holds the mass dropped for them too."""
    side = make_side(phases, remove=remove, mass_budget=1e-3 * reference)
    bounds = chernoff(side, tuple(s.inner for s in side.steps), _ORDERS)
    return replace(bounds, beyond=bounds.beyond + side.dropped)


def gaussian_mu(phases: tuple[Phase, ...]) -> float | None:
    """mu of the equivalent single Gaussian if every phase has one certain shift, else None."""
    return _dominating_mu(phases) if all(ph.is_gaussian for ph in phases) else None


def _dominating_mu(phases: tuple[Phase, ...]) -> float:
    """mu of a Gaussian that is easier to tell apart: every step has its largest shift.

    Q^T is a mixture, over the sequences of shifts, of Gaussians of norm at most mu; the
    hockey-stick divergence is jointly convex and grows with mu (docs, eq. 21).
    """
    return math.sqrt(
        math.fsum(ph.count * (ph.shifts[-1] / ph.noise_multiplier) ** 2 for ph in phases)
    )


def _largest_add_loss(phases: tuple[Phase, ...]) -> float:
    """The supremum of add's loss, -sum T log p_0; infinite where a phase has no zero shift."""
    if any(ph.shifts[0] > 0 for ph in phases):
        return math.inf
    return -math.fsum(ph.count * ph.log_probabilities[0] for ph in phases) * (1 + 1e-12)


def epsilon_bounds(phases: tuple[Phase, ...], delta: float, *, remove: bool) -> Bounds:
    """Certified epsilon(delta) of one direction: exactly 0 where delta(0) <= delta."""
    mu = gaussian_mu(phases)
    if mu is not None:
        return gaussian_epsilon(mu, delta)
    if len(phases) == 1 and phases[0].count == 1:
        closed = single_step_epsilon(phases[0], delta, remove=remove)
        if closed is not None:
            return closed
    if _total_variation(phases, delta) <= delta:
        return Bounds(0.0, 0.0)

    def dominating() -> Bounds:
        return Bounds(0.0, gaussian_epsilon(_dominating_mu(phases), delta).upper)

    try:
        best = Bounds(0.0, math.inf)
        for nodes in attempts(phases, Target(None, math.log(delta), delta), remove=remove):
            bounds = _solve(nodes, delta)
            if bounds.upper == 0:
                return bounds
            best = best.meet(bounds)
            if best.upper - best.lower <= _ENOUGH * max(best.upper, 1e-3):
                return best
        best = best.meet(dominating())
        cheap = _plain_chernoff(phases, remove, delta)
    except GridTooLarge:
        return dominating()
    if cheap.beyond < delta:
        upper = float(((cheap.value - math.log(delta - cheap.beyond)) / cheap.a).min())
        best = best.meet(Bounds(0.0, max(upper, 0.0) * (1 + 1e-12)))
    return best


def _solve(nodes: Nodes, delta: float) -> Bounds:
    """The epsilons where the upper and the lower bound of ``nodes`` cross ``delta``.

    From where the uncertified sum meets delta one steps outwards until the certified bound is on
    the right side; delta falls in epsilon, so both ends hold whatever the search did.
    """
    if delta_at(nodes, 0.0).upper <= delta:
        return Bounds(0.0, 0.0)
    crossing = centre(nodes, math.log(delta), nodes.epsilon)
    epsilon = nodes.epsilon if crossing is None else crossing
    piece = evaluate(nodes, epsilon)
    sound = piece.middle > 0 and piece.slope < 0
    rate = -piece.middle / piece.slope if sound else 1 / nodes.at.c
    here = delta_at(nodes, epsilon)
    least_move = 1e-15 * max(epsilon, 1e-6)
    above = max(math.log(here.upper / delta), 0.0)
    upper = outwards(
        lambda at: delta_at(nodes, at).upper <= delta, epsilon, rate * above * 1.02 + least_move
    )
    below = max(math.log(delta / here.lower), 0.0) if here.lower > 0 else 1.0
    lower = outwards(
        lambda at: at <= 0 or delta_at(nodes, at).lower >= delta,
        epsilon,
        -(rate * below * 1.02 + least_move),
    )
    return Bounds(max(lower or 0.0, 0.0), math.inf if upper is None else upper)


def _pooled(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    """The phases; equal ones become one with their steps together."""
    counts: dict[Phase, int] = {}
    for ph in phases:
        one = replace(ph, count=1)
        counts[one] = counts.get(one, 0) + ph.count
    return tuple(replace(one, count=count) for one, count in counts.items())


def _bracket(bounds: Bounds, floor: float, what: str) -> Bracket:
    note = ""
    if bounds.upper - bounds.lower > _WIDTH * max(bounds.upper, floor):
        note = (
            f"certified, but wider than {_WIDTH:g} relative: no method narrowed {what} further "
            "for these parameters"
        )
    return Bracket(lower=bounds.lower, upper=bounds.upper, accountant=ACCOUNTANT, note=note)


def delta_bracket(phases: Sequence[Phase], epsilon: float) -> Bracket:
    """Certified bounds of delta(epsilon) for the composition of ``phases``.

    Guarantee: ``lower <= delta(epsilon) <= upper``; float rounding and quadrature are inside the
    bounds, by the stated allowance of docs/accounting.md, Section 6. Where the width exceeds
    1e-6 of ``upper``, ``note`` says so.

    Args:
        phases: at least one; the order does not matter.
        epsilon: finite, >= 0.

    Raises:
        ValueError: for an epsilon out of range.

    Source: Charles et al. 2024, Thm 1 and 3; the method is in docs/accounting.md.

    >>> from userdp.accounting.contour import delta_bracket, phase_of
    >>> from userdp.accounting.laws import Binomial
    >>> step = phase_of(Binomial(trials=8, probability=0.01), noise_multiplier=1.0, count=2000)
    >>> bracket = delta_bracket([step], 34.8906956)
    >>> print(f"{bracket.lower:.7g} {bracket.upper:.7g}")
    1e-06 1e-06
    """
    require_epsilon(epsilon)
    kept = _pooled(phases)
    bounds = delta_bounds(kept, epsilon, remove=True)
    if gaussian_mu(kept) is None:  # both directions of a Gaussian are equal
        # add need not be known better than that it lies below remove's lower bound
        bounds = bounds.join(delta_bounds(kept, epsilon, remove=False, enough=bounds.lower))
    return _bracket(bounds, 0.0, "delta")


def epsilon_bracket(phases: Sequence[Phase], delta: float) -> Bracket:
    """Certified bounds of the least epsilon with delta(epsilon) <= ``delta``.

    Guarantee: ``lower <= epsilon <= upper``; exactly 0 (both) where delta(0) <= ``delta`` is
    certified. Otherwise the width is at most 1e-6 * max(upper, 1e-3), or ``note`` says that it is
    wider.

    Args:
        phases: at least one.
        delta: in (0, 1).

    Raises:
        ValueError: for a delta out of range.

    Source: Charles et al. 2024, Thm 1 and 3; the method is in docs/accounting.md.
    """
    require_delta(delta)
    kept = _pooled(phases)
    bounds = epsilon_bounds(kept, delta, remove=True)
    if gaussian_mu(kept) is None and math.isfinite(bounds.upper):
        # delta falls in epsilon: where add is at most delta at remove's upper end, it asks for less
        add = delta_bounds(kept, bounds.upper, remove=False, enough=delta)
        if add.upper > delta:
            bounds = bounds.join(epsilon_bounds(kept, delta, remove=False))
    return _bracket(bounds, _LEAST_EPSILON, "epsilon")
