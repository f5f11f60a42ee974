"""Which declared series pays for a run: the first that has room for one of its price.

Read from the order of the ledger's lines alone, so that nobody can say it otherwise later: a run
that could be one of a series is one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from userdp.plans import Plan

if TYPE_CHECKING:
    from userdp.ledger.charges import Declared
    from userdp.ledger.history import History


def room_for(history: History, plan: Plan | None) -> Declared | None:
    """The series that would pay for a run of this plan, if one would."""
    for declared in history.series.values():
        if (
            plan is not None
            and declared.runs < declared.series.runs
            and declared.series.holds(plan)
        ):
            return declared
    return None


def take_run(history: History, plan: Plan | None) -> str | None:
    """Take a run of this plan from the series that pays for it, and return its id, if any does."""
    declared = room_for(history, plan)
    if declared is None:
        return None
    history.series[declared.id] = replace(declared, runs=declared.runs + 1)
    return declared.id
