r"""Several ways to cut one direction; each gives a certified bracket, so all may be intersected.

Cutting x where its mass ends (no ``reach_c``) keeps M small but needs the tilted integrand to have
decayed at the cut; cutting only components needs no such thing but admits the far ones, whose
tilted mass pulls the saddle point down (docs, Section 4).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from userdp.accounting.contour.phases import Phase
from userdp.accounting.contour.plan import plan_nodes
from userdp.accounting.contour.saddle import Saddle, saddle_at_delta, saddle_at_epsilon
from userdp.accounting.contour.side import GridTooLarge, Side, make_side
from userdp.accounting.contour.trapezoid import Nodes

_SHARES = (2e-9, 1e-7)  # numerator mass that may be dropped, relative to delta
TINY = 1e-290  # below this, delta is only said to be below this


@dataclass(frozen=True, slots=True)
class Attempt:
    """Nodes, and the saddle that they were planned for."""

    nodes: Nodes
    saddle: Saddle


def _locate(
    side: Side, epsilon: float | None, log_delta: float | None, start: float
) -> Saddle | None:
    """The saddle at ``epsilon``, or where delta is exp(``log_delta``)."""
    if epsilon is not None:
        return saddle_at_epsilon(side, epsilon, start)
    least = saddle_at_epsilon(side, 0.0, start)
    if least is None or log_delta is None:
        return least
    return saddle_at_delta(side, log_delta, least)


def attempts(
    phases: tuple[Phase, ...],
    *,
    remove: bool,
    reference: float,
    epsilon: float | None = None,
    log_delta: float | None = None,
) -> Iterator[Attempt]:
    """Nodes for delta near ``reference``, at ``epsilon`` or at ``log_delta``, cut in turn."""
    start = 1.0
    for share in _SHARES:
        side = make_side(phases, remove=remove, mass_budget=share * reference)
        saddle = _locate(side, epsilon, log_delta, start)
        if saddle is None:
            continue
        start = saddle.c
        nodes = plan_nodes(side, saddle)
        if nodes is not None:
            yield Attempt(nodes, saddle)
        if not remove or not side.steps:
            continue
        reach = saddle.c
        try:
            for _ in range(3):
                side = make_side(
                    phases, remove=remove, mass_budget=share * reference, reach_c=reach
                )
                saddle = _locate(side, epsilon, log_delta, reach)
                if saddle is None or saddle.c <= 1.02 * reach:
                    break
                reach = saddle.c
        except GridTooLarge:
            continue
        if saddle is None:
            continue
        nodes = plan_nodes(side, saddle)
        if nodes is not None:
            yield Attempt(nodes, saddle)


def reference_delta(phases: tuple[Phase, ...], *, remove: bool, epsilon: float) -> float | None:
    """A rough delta(epsilon), for choosing what to drop; None where it is below ``TINY``."""
    reference = 1e-9
    for _ in range(10):
        side = make_side(phases, remove=remove, mass_budget=2e-9 * reference)
        saddle = saddle_at_epsilon(side, epsilon)
        found = -math.inf if saddle is None else saddle.log_delta
        if found >= math.log(reference) - 1:
            return reference
        if reference <= TINY:
            return None
        step_down = reference**2.5 if saddle is None else 0.5 * math.exp(max(found, -690.0))
        reference = max(step_down, TINY)
    return reference
