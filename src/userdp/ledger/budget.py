"""What the budget of a store's people refuses.

A *filter* is fixed before the first charge and the first look, for the store's life. It counts
Rényi divergences of one order (`userdp.accounting.filters`), and claims the whole budget from the
first charge on. Without one, charges add up.
"""

from __future__ import annotations

import math
from dataclasses import replace

from userdp.accounting.filters import RenyiFilter
from userdp.core.errors import UseError
from userdp.core.vocabulary import delta_up, epsilon_up, round_up
from userdp.ledger.store_history import History


def refuse_used(history: History) -> None:
    """`UseError` if something was charged, tuned or looked at before, or a budget was opened."""
    path, budget = history.path, history.budget
    if budget is not None:
        raise UseError(
            f"{path} has a budget of epsilon {round_up(budget.filter.epsilon)} at delta "
            f"{delta_up(budget.filter.delta)} already: one that is opened after a look bounds "
            "nothing",
            hint="it holds for the store's life; see `userdp store budget STORE`",
        )
    if history.charges or history.looks or history.tunings:
        raise UseError(
            f"something was charged or looked at in {path} before: a budget that is opened after a "
            "look bounds nothing",
            hint="open it before anything else is done with the store",
        )


def refuse_beyond(history: History, opened: RenyiFilter) -> None:
    """`UseError` if all charges, the last included, exceed what was fixed before the first."""
    path = history.path
    # What counts people in different ways does not add up to anything.
    if len({charge.pays_for.guarantee().adjacency for charge in history.charges.values()}) > 1:
        raise UseError(
            f"{path} would hold charges of different adjacencies, and no total bounds their sum",
            hint="keep records of several owners in a store of their own",
        )
    *before, new = history.costs(opened).values()
    if opened.admits([*before, new]):
        return
    if math.isinf(new.rho):
        raise UseError(
            f"{path} has a budget of epsilon {epsilon_up(opened.epsilon)}, and this has no "
            "epsilon: it would make the whole budget worth nothing",
            hint="do it on another store, of other people",
        )
    if opened.admits([*before, replace(new, delta=0.0)]):
        raise UseError(
            f"{path} has a budget of delta {delta_up(opened.delta)}, of which "
            f"{delta_up(opened.reserved_delta)} is reserved for what is known by its own epsilon "
            "and delta only, and this would need more of it",
            hint="plan with a smaller --delta; or sample users or examples, which need "
            "none of the reserve",
        )
    raise UseError(
        f"{path} would be charged beyond its budget of epsilon {epsilon_up(opened.epsilon)} at "
        f"delta {delta_up(opened.delta)}: this needs {100 * new.rho / opened.capacity:.1f} % of "
        f"the budget, and {100 * opened.left(before) / opened.capacity:.1f} % is left",
        hint="plan with more noise or fewer steps: `userdp store budget STORE` shows what is left, "
        "and what it buys. Budgets are for the store's life and are never raised",
    )
