"""``userdp.budget``: a store's total and what was spent of it; opened once, for its life."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from userdp.accounting.filters import RenyiFilter
from userdp.claims import claim as claim_at
from userdp.core.codec import plain
from userdp.core.errors import UseError
from userdp.data.meta import read_meta
from userdp.ledger import StoreLedger
from userdp.ledger.lines import OpenBudget
from userdp.ledger.spending import overview
from userdp.ledger.store_ledger import new_id


def budget(
    store: str | os.PathLike[str],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    order: float | None = None,
    reserve: float | None = None,
) -> dict[str, Any]:
    """Show what a store's people were charged, or fix a total.

    With epsilon and delta a budget is opened, before anything else is done with the store, and
    once. Everything that is ever released of its people then satisfies (epsilon, delta)-DP
    together, whatever is chosen by earlier releases: what would exceed it is refused. It is never
    raised, and never renewed. Without them the ledger is shown: what was spent when on what, what
    is left, and what that would buy.

    Example::

        userdp store budget store --epsilon 8 --delta 1e-6

    Args:
        store: a user store, or its folder.
        epsilon: of everything together; with it a budget is opened. Nothing may have been charged
            or looked at before.
        delta: of everything together; needed with epsilon, and only then.
        order: of the Rényi filter; by default the one that lets the most Gaussian noise through.
        reserve: the share of delta for releases that are known by their own (ε, δ) only, such as
            runs that draw batches of a fixed size; 0 by default.

    Returns:
        What was spent when on what, what is left, what that buys, and the claim of the store, None
        while nothing was charged: ``operator_only``, since it says when people were trained on.

    Raises:
        UseError: the store was used before, or a number is out of range; nothing was written.
    """
    read_meta(path := Path(store))
    ledger = StoreLedger(path)
    if epsilon is not None and delta is not None:
        opened = RenyiFilter.opened(
            epsilon=epsilon, delta=delta, order=order, reserved=reserve or 0.0
        )
        ledger.append(OpenBudget(run_id=new_id(), filter=opened))
    elif any(one is not None for one in (epsilon, delta, order, reserve)):
        raise UseError(
            "a budget is opened by epsilon and delta together: one total for the store's life",
            hint="give --epsilon and --delta; or neither, to see what was spent",
        )
    history = ledger.history()
    return {
        "store": str(path),
        "operator_only": True,
        **plain(overview(history)),
        "claim": claim_at(path) if history.charges else None,
    }
