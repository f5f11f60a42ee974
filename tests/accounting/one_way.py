"""One direction of a pair, which an answer for both takes the larger of."""

from __future__ import annotations

from collections.abc import Sequence

from userdp.accounting import Bracket
from userdp.accounting.contour import Phase
from userdp.accounting.contour.curve import delta_bounds


def one_way(phases: Sequence[Phase], epsilon: float, *, remove: bool) -> Bracket:
    """Certified bounds of δ of one direction."""
    found = delta_bounds(tuple(phases), epsilon, remove=remove)
    return Bracket(lower=found.lower, upper=found.upper, accountant="contour")
