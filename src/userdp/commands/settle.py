"""``userdp.settle``: end a run before its plan, and what it then costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from userdp.claims import Claim
from userdp.claims import claim as claim_at
from userdp.commands.answer import Answer
from userdp.commands.run import Place, folder_of
from userdp.ledger import RunFolder
from userdp.ledger.run import end_early


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled(Answer):
    """A run that was settled before its end.

    Args:
        run: its folder.
        store: that it was charged in.
        steps_attempted: that any of its folders began.
        steps_planned: that it had reserved.
        steps_charged: that it costs.
        why_whole_plan: why it costs its whole plan; None where only the attempts count.
        share_given_back: the part of the store's budget that was freed, from 0 to 1; None without a
            filter.
        store_claim: of the store, afterwards.
    """

    run: Path
    store: Path
    steps_attempted: int
    steps_planned: int
    steps_charged: int
    why_whole_plan: str | None
    share_given_back: float | None
    store_claim: Claim


def settle(run: Place) -> Settled:
    """End an unfinished run: its price is then final.

    Under a budget with a filter (userdp store budget) the steps that did not run are given back, if
    nothing but released numbers can have chosen the moment: the store's ledger shows no exact look,
    and all its runs were trained without an exact log. In any other case the run costs its whole
    plan, as it did before; which of the two it is, and why, is said.

    Example::

        userdp store settle run

    Args:
        run: an unfinished run, or its folder.

    Raises:
        UseError: it is finished or settled, trains without privacy, or is a private selection's.
        FailureError: a process trains it.
    """
    ledger, charge = end_early(RunFolder(folder := folder_of(run)))
    budget, given_back = ledger.history().budget, None
    assert charge.plan is not None
    assert charge.settlement is not None
    if budget is not None:
        whole = budget.filter.of_steps(charge.plan.mechanism)
        given_back = 0.0
        if whole is not None and charge.stopped is not None:
            given_back = (whole.rho - charge.cost(budget.filter).rho) / budget.filter.capacity
    return Settled(
        run=folder,
        store=ledger.store,
        steps_attempted=charge.steps,
        steps_planned=charge.plan.steps,
        steps_charged=charge.plan.steps if charge.stopped is None else charge.stopped,
        why_whole_plan=charge.settlement.whole or None,
        share_given_back=given_back,
        store_claim=claim_at(ledger.store),
    )
