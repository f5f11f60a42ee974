r"""Certified delta(epsilon) and epsilon(delta) of T steps: the contour accountant's answers.

Each direction asks for one attempt after the other until its bracket is narrow. Derivation and
proofs: docs/accounting.md.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from userdp.accounting.bracket import Bracket
from userdp.accounting.certified_search import outwards
from userdp.accounting.contour.closed_form import Bounds, gaussian_delta, gaussian_epsilon
from userdp.accounting.contour.coarse_grid import Chernoff, GridTooLarge, chernoff, make_side
from userdp.accounting.contour.methods import TINY, Target, attempts, centre, reference_delta
from userdp.accounting.contour.privacy_loss import Pair
from userdp.accounting.contour.trapezoidal_sum import Nodes, evaluate
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


def delta_bounds(pair: Pair, epsilon: float, *, remove: bool, enough: float = 0.0) -> Bounds:
    """Certified delta(epsilon) of one direction; may stop early at an upper bound <= ``enough``."""
    if pair.gaussian_mu is not None:
        return gaussian_delta(pair.gaussian_mu, epsilon)
    if not remove and epsilon >= pair.largest_add_loss:
        return Bounds(0.0, 0.0)
    try:
        bounds = _mixed_delta(pair, epsilon, remove, enough)
    except GridTooLarge:
        bounds = Bounds(0.0, gaussian_delta(pair.dominating_mu, epsilon).upper)
    upper = min(bounds.upper, pair.participation)
    if not remove and epsilon > _FARTHEST_ADD:
        return Bounds(0.0, upper)
    return Bounds(min(bounds.lower, upper), upper)


def _mixed_delta(pair: Pair, epsilon: float, remove: bool, enough: float) -> Bounds:
    """The cheap answers first: bounds without a sum, if they are ``enough``."""
    if pair.participation <= enough:
        return Bounds(0.0, pair.participation)
    if enough > 0:
        cheap = _plain_chernoff(pair, remove, enough).most_delta(epsilon)
        if cheap <= enough:
            return Bounds(0.0, cheap)
    best = Bounds(0.0, 1.0)
    reference = reference_delta(pair, remove=remove, epsilon=epsilon) or TINY
    for nodes in attempts(pair, Target(epsilon, None, reference), remove=remove):
        best = best.meet(delta_at(nodes, epsilon))
        if best.upper - best.lower <= _ENOUGH * best.lower or best.upper <= enough:
            return best
    cheap = _plain_chernoff(pair, remove, reference).most_delta(epsilon)
    return best.meet(Bounds(0.0, min(cheap, 1.0)))


def _plain_chernoff(pair: Pair, remove: bool, reference: float) -> Chernoff:
    """Chernoff bounds that always exist; ``beyond`` holds the mass dropped for them too."""
    side = make_side(pair, remove=remove, mass_budget=1e-3 * reference)
    bounds = chernoff(side, side.inner, _ORDERS)
    return replace(bounds, beyond=bounds.beyond + side.dropped)


def epsilon_bounds(pair: Pair, delta: float, *, remove: bool) -> Bounds:
    """Certified epsilon(delta) of one direction: exactly 0 where delta(0) <= delta."""
    if pair.gaussian_mu is not None:
        return gaussian_epsilon(pair.gaussian_mu, delta)
    if pair.participation <= delta:
        return Bounds(0.0, 0.0)

    def dominating() -> Bounds:
        return Bounds(0.0, gaussian_epsilon(pair.dominating_mu, delta).upper)

    try:
        best = Bounds(0.0, math.inf)
        for nodes in attempts(pair, Target(None, math.log(delta), delta), remove=remove):
            bounds = _solve(nodes, delta)
            if bounds.upper == 0:
                return bounds
            best = best.meet(bounds)
            if best.upper - best.lower <= _ENOUGH * max(best.upper, 1e-3):
                return best
        best = best.meet(dominating())
        cheap = _plain_chernoff(pair, remove, delta)
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


def _bracket(bounds: Bounds, floor: float, what: str) -> Bracket:
    note = ""
    if bounds.upper - bounds.lower > _WIDTH * max(bounds.upper, floor):
        note = (
            f"certified, but wider than {_WIDTH:g} relative: no method narrowed {what} further "
            "for these parameters"
        )
    return Bracket(lower=bounds.lower, upper=bounds.upper, accountant=ACCOUNTANT, note=note)


def delta_bracket(pair: Pair, epsilon: float) -> Bracket:
    """Certified bounds of delta(epsilon) for all steps of ``pair``.

    Guarantee: ``lower <= delta(epsilon) <= upper``; float rounding and quadrature are inside the
    bounds, by the stated allowance of docs/accounting.md, Section 6. Where the width exceeds
    1e-6 of ``upper``, ``note`` says so.

    Args:
        pair: what is priced.
        epsilon: finite, >= 0.

    Raises:
        ValueError: for an epsilon out of range.

    Source: Charles et al. 2024, Thm 1 and 3; the method is in docs/accounting.md.

    >>> from userdp.accounting.contour import delta_bracket, pair_of
    >>> from userdp.accounting.item_count_laws import Binomial
    >>> pair = pair_of(Binomial(trials=8, probability=0.01), noise_multiplier=1.0, steps=2000)
    >>> bracket = delta_bracket(pair, 34.8906956)
    >>> print(f"{bracket.lower:.7g} {bracket.upper:.7g}")
    1e-06 1e-06
    """
    require_epsilon(epsilon)
    bounds = delta_bounds(pair, epsilon, remove=True)
    if pair.gaussian_mu is None:  # both directions of a Gaussian are equal
        # add need not be known better than that it lies below remove's lower bound
        bounds = bounds.join(delta_bounds(pair, epsilon, remove=False, enough=bounds.lower))
    return _bracket(bounds, 0.0, "delta")


def epsilon_bracket(pair: Pair, delta: float) -> Bracket:
    """Certified bounds of the least epsilon with delta(epsilon) <= ``delta``.

    Guarantee: ``lower <= epsilon <= upper``; exactly 0 (both) where delta(0) <= ``delta`` is
    certified. Otherwise the width is at most 1e-6 * max(upper, 1e-3), or ``note`` says that it is
    wider.

    Args:
        pair: what is priced.
        delta: in (0, 1).

    Raises:
        ValueError: for a delta out of range.

    Source: Charles et al. 2024, Thm 1 and 3; the method is in docs/accounting.md.
    """
    require_delta(delta)
    bounds = epsilon_bounds(pair, delta, remove=True)
    if pair.gaussian_mu is None and math.isfinite(bounds.upper):
        # delta falls in epsilon: where add is at most delta at remove's upper end, it asks for less
        add = delta_bounds(pair, bounds.upper, remove=False, enough=delta)
        if add.upper > delta:
            bounds = bounds.join(epsilon_bounds(pair, delta, remove=False))
    return _bracket(bounds, _LEAST_EPSILON, "epsilon")
