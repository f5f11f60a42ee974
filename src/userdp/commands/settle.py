"""``userdp.settle``: end a run before its plan, and what it then costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from userdp.claims import Claim
from userdp.claims import claim as claim_at
from userdp.commands.answer import Answer
from userdp.commands.run import Place, folder_of
from userdp.ledger import RunFolder, StoreLedger
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
    """End an unfinished run: nobody goes on with it, and its price is final.

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
    ended = end_early(RunFolder(folder := folder_of(run)))
    history = StoreLedger(ended.store).history()
    given_back = None
    if history.budget is not None:
        opened, charge = history.budget.filter, history.charges[ended.run_id]
        assert charge.plan is not None
        whole = opened.of_steps(charge.plan.mechanism)
        given_back = 0.0
        if whole is not None and charge.stopped is not None:
            given_back = (whole.rho - charge.cost(opened).rho) / opened.capacity
    return Settled(
        run=folder,
        store=ended.store,
        steps_attempted=ended.attempts,
        steps_planned=ended.planned,
        steps_charged=ended.charged,
        why_whole_plan=ended.why_whole,
        share_given_back=given_back,
        store_claim=claim_at(ended.store),
    )
