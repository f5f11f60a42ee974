"""What was charged on all people of a store, beside what one run claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from userdp.claims import Claim
from userdp.claims.claims import claim
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.reporting.run_facts import RunFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreTotal:
    """The claim of a store's ledger, which the operator asked to be shown.

    Args:
        claim: of all that was charged so far.
    """

    claim: Claim


def read_store_total(store: Path, runs: Sequence[RunFacts]) -> StoreTotal:
    """The total of the store that all of ``runs`` were charged in.

    Raises:
        UseError: there is no ledger, it was edited, or a run was not charged in it.
    """
    told = claim(store)
    known = StoreLedger(store).history().ids
    for run in runs:
        if run.run_id not in known:
            raise UseError(
                f"the ledger of {store} knows no run {run.name!r}: its total would be of other "
                "people than the run's",
                hint="name the store that the run was trained on, or leave --store out",
            )
    return StoreTotal(claim=told)
