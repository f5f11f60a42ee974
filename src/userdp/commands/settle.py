"""``userdp.settle``: end a run before its plan, and what it then costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.claims import Claim
from userdp.claims import claim as claim_at
from userdp.commands.answer import Part
from userdp.commands.run import Place, folder_of
from userdp.ledger import RunFolder, StoreLedger
from userdp.ledger.budget import cost_of
from userdp.ledger.ending import Ended, end_early


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """A run that was settled before its end.

    Args:
        run: its folder.
        ended: what of it is charged, and why.
        given_back: the part of the store's budget that was freed, from 0 to 1; None without a
            filter.
        store_claim: of the store, afterwards.
    """

    run: Path
    ended: Ended
    given_back: float | None
    store_claim: Claim

    def to_dict(self) -> dict[str, Any]:
        """What ``userdp store settle --json`` prints."""
        ended = self.ended
        return {
            "run": str(self.run),
            "store": str(ended.store),
            "steps_attempted": ended.attempts,
            "steps_planned": ended.planned,
            "steps_charged": ended.charged,
            "why_whole_plan": ended.why_whole,
            "share_given_back": self.given_back,
            "store_claim": self.store_claim.to_dict(),
        }

    def __str__(self) -> str:
        ended = self.ended
        ran = f"{ended.attempts:,} of {ended.planned:,} planned steps were attempted"
        if ended.why_whole is not None:
            return f"{ran}, and the whole plan is charged: {ended.why_whole}."
        return (
            f"{ran}, and only these are charged: {100 * (self.given_back or 0.0):.1f} % of the "
            "store's budget is given back."
        )


def settle(run: Place) -> Settled:
    """End an unfinished run: nobody goes on with it, and its price is final.

    Under a budget with a filter (userdp store budget) the steps that did not run are given back, if
    nothing but released numbers can have chosen the moment: the store's ledger shows no exact look,
    and all its runs were trained without an exact log. In any other case the run costs its whole
    plan, as it did before; which of the two it is, and why, is said.

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
            given_back = (whole.rho - cost_of(charge, opened).rho) / opened.capacity
    return Settled(
        run=folder, ended=ended, given_back=given_back, store_claim=claim_at(ended.store)
    )


def in_words(settled: Settled) -> Iterator[Part]:
    """What the run cost, and what the store's people were charged in all."""
    yield str(settled)
    yield "The run is closed: no folder of it goes on."
    yield f"The store at {settled.ended.store}:"
    yield settled.store_claim
