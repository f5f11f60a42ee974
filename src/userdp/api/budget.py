"""``userdp.budget``: a store's total and what was spent of it; opened once, for its life."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from userdp.accounting.filters import RenyiFilter
from userdp.claims import Claim
from userdp.claims import claim as claim_at
from userdp.data.meta import read_meta
from userdp.data.store import UserStore
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.ledger.overview import Overview, overview


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetView:
    """A store's ledger as people read it. Operator-only: it says when people were trained on.

    Args:
        overview: what was spent when on what, what is left, what it buys.
        claim: of the store; None while nothing was charged.
    """

    overview: Overview
    claim: Claim | None

    def to_dict(self) -> dict[str, Any]:
        """What ``userdp budget --json`` prints."""
        values = asdict(self.overview)
        return {**values, "claim": None if self.claim is None else self.claim.to_dict()}


def budget(
    store: UserStore | str | Path,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    order: float | None = None,
    reserve: float | None = None,
) -> BudgetView:
    """Show what a store's people were charged; or first fix a total for its whole life.

    Guarantee: with ``epsilon``, everything that is ever released of the store's people satisfies
    (``epsilon``, ``delta``)-DP together, whatever is chosen by earlier releases: what would exceed
    it is refused (`userdp.accounting.filters`). It is never raised, and never renewed.

    Args:
        store: a user store, or its folder.
        epsilon: of everything together; with it a budget is opened. Nothing may have been charged
            or looked at before.
        delta: of everything together; needed with ``epsilon``, and only then.
        order: of the Rényi filter; by default the one that lets the most Gaussian noise through.
        reserve: the share of ``delta`` for releases that are known by their own (ε, δ) only; 0 by
            default.

    Raises:
        UseError: the store was used before, or a number is out of range; nothing was written.
    """
    path = store.path if isinstance(store, UserStore) else Path(store)
    read_meta(path)
    ledger = StoreLedger(path)
    if epsilon is not None and delta is not None:
        opened = RenyiFilter.opened(
            epsilon=epsilon, delta=delta, order=order, reserved=reserve or 0.0
        )
        ledger.open_budget(opened)
    elif any(one is not None for one in (epsilon, delta, order, reserve)):
        raise UseError(
            "a budget is opened by epsilon and delta together: one total for the store's life",
            hint="give --epsilon and --delta; or neither, to see what was spent",
        )
    history = ledger.history()
    return BudgetView(overview=overview(history), claim=claim_at(path) if history.charges else None)
