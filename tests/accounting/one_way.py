"""One direction of a pair, which an answer for both takes the larger of."""

from __future__ import annotations

from collections.abc import Sequence

from userdp.accounting import Bracket
from userdp.accounting.contour import OneWay, Phase


def one_way(phases: Sequence[Phase], epsilon: float, *, remove: bool) -> Bracket:
    """Certified bounds of δ of one direction."""
    lower, upper = OneWay(phases, remove=remove).at(epsilon)
    return Bracket(lower=lower, upper=upper, accountant="contour")
