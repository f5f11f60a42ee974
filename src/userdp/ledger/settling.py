"""A run that ends before its plan: whether only its attempts count, or all that was planned.

When a run stopped may have been chosen by what it released. Under a filter that is allowed: each of
its steps is a release of its own, and the filter holds wherever the releases end
(`userdp.accounting.filters`). But *only* what was charged to the filter may have chosen it. So the
steps that did not run are given back where the ledger shows no exact number of these people's text:
no look, no run that kept a log of exact losses (with learning.no_exact_log=true it keeps none), no
other copy of the ledger, and no further charge of the run. Correlated noise is priced for all steps
of a run together, and gives none back. Whoever read the text itself, or timed the steps, and
stopped the run by that, knows what no ledger shows; docs/budgets.md says so.

In any other ledger a run that stops costs its whole plan.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from userdp.ledger.history import History


def why_whole(history: History, run_id: str) -> str | None:
    """Why a run that stops here costs its whole plan, as a clause; None where its attempts do."""
    if history.budget is None:
        return "the store has no budget with a filter, and the moment may have been chosen"
    if history.looked:
        looks = ", ".join(sorted(history.looked))
        return f"exact numbers were shown ({looks}), which may have chosen the moment"
    if history.copied:
        return "the ledger was copied or moved, so that another copy may hold a look"
    own = history.charges[run_id]
    if own.again or any(charge.again == run_id for charge in history.charges.values()):
        return "the run was charged more than once, so that copies of its folder may have gone on"
    return None


def read(history: History, run_id: str, *, attempts: int, at: int) -> None:
    """Put the end of a run, in the line ``at``, into what was read of a ledger before it."""
    charge = history.charges[run_id]
    kept = None if why_whole(history, run_id) is not None else attempts
    history.settled.add(run_id)
    history.halted.add(run_id)
    history.charges[run_id] = replace(charge, steps=attempts, settled=True, stopped=kept, ended=at)
