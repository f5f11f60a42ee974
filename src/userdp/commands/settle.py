"""``userdp.settle``: end a run before its plan, and what it then costs."""

from __future__ import annotations

from typing import Any

from userdp.claims import claim as claim_at
from userdp.commands.run import Place, folder_of
from userdp.ledger import RunFolder
from userdp.ledger.run_ledger import end_early


def settle(run: Place) -> dict[str, Any]:
    """End an unfinished run: its price is then final.

    Under a budget with a filter (userdp store budget) the steps that did not run are given back, if
    nothing but released numbers can have chosen the moment: the store's ledger shows no exact look,
    and all its runs were trained without an exact log. In any other case the run costs its whole
    plan, as it did before; which of the two it is, and why, is said.

    Example::

        userdp store settle run

    Args:
        run: an unfinished run, or its folder.

    Returns:
        The steps that the run had planned, began and is charged with; why it costs its whole plan,
        where it does; and the claim of the store, afterwards.

    Raises:
        UseError: it is finished or settled, trains without privacy, or is a private selection's.
        FailureError: a process trains it.
    """
    ledger, charge = end_early(RunFolder(folder := folder_of(run)))
    assert charge.plan is not None
    assert charge.settlement is not None
    planned = charge.plan.steps
    return {
        "run": str(folder),
        "store": str(ledger.store),
        "steps_attempted": charge.steps,
        "steps_planned": planned,
        "steps_charged": planned if charge.stopped is None else charge.stopped,
        "why_whole_plan": charge.settlement.whole or None,
        "store_claim": claim_at(ledger.store),
    }
