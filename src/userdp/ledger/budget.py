"""What the people of a store may be charged in all: a total that is added up, or one with a filter.

Both are fixed before the first charge and the first look, for the store's life. A *total* admits
charges while their (ε_i, δ_i) add up to at most its own (Rogers et al. 2016). A *filter* counts
Rényi divergences of one order instead (`userdp.accounting.filters`), admits several times as much,
and claims the whole budget from the first charge on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from userdp.accounting import rdp
from userdp.accounting.filters import Cost, RenyiFilter
from userdp.accounting.private_selection import base_curve, selected_curve
from userdp.errors import UseError
from userdp.plans import PrivateSelection
from userdp.plans.tuning import mechanism_of
from userdp.vocabulary import (
    NONE,
    Adjacency,
    Guarantee,
    PrivacyUnit,
    delta_up,
    epsilon_up,
    round_up,
)

if TYPE_CHECKING:
    from userdp.ledger.charges import Charge
    from userdp.ledger.history import History


def refuse_beyond(path: Path, history: History) -> None:
    """`UseError` if all charges together exceed what was fixed before the first.

    Args:
        path: of the ledger.
        history: with the charge that is asked about.
    """
    if history.total is None and history.budget is None:
        return
    # What counts people in different ways does not add up to anything.
    if len({adjacency_of(charge) for charge in history.charges.values()}) > 1:
        raise UseError(
            f"{path} would hold charges of different adjacencies, and no total bounds their sum",
            hint="keep records of several owners in a store of their own",
        )
    if history.total is not None:
        _refuse_beyond_total(path, history, *history.total)
    if history.budget is not None:
        _refuse_beyond_filter(path, history, history.budget.filter)


def _refuse_beyond_total(path: Path, history: History, epsilon: float, delta: float) -> None:
    charged = list(prices(history))
    spent = math.fsum(price.epsilon for price in charged)
    share = math.fsum(price.delta for price in charged)
    if not (spent <= epsilon and share <= delta):
        raise UseError(
            f"{path} would be charged beyond the total that was fixed for it before the first "
            f"charge: epsilon {epsilon_up(epsilon)} at delta {delta_up(delta)}",
            hint="plan for what is left of it; a total that is raised after a look bounds nothing",
        )


def _refuse_beyond_filter(path: Path, history: History, opened: RenyiFilter) -> None:
    costs = [cost_of(charge, opened) for charge in history.charges.values()]
    if opened.admits(costs):
        return
    if math.isinf(costs[-1].rho):
        raise UseError(
            f"{path} has a budget of epsilon {epsilon_up(opened.epsilon)}, and this has no "
            "epsilon: it would make the whole budget worth nothing",
            hint="do it on another store, of other people",
        )
    before = costs[:-1]
    if opened.admits([*before, Cost(rho=costs[-1].rho, steps=costs[-1].steps)]):
        raise UseError(
            f"{path} has a budget of delta {delta_up(opened.delta)}, of which "
            f"{delta_up(opened.reserved_delta)} is reserved for what is known by its own epsilon "
            "and delta only, and this would need more of it",
            hint="plan with a smaller --delta; or sample users or examples, which need "
            "none of the reserve",
        )
    left = opened.left(before) / opened.capacity
    needed = costs[-1].rho / opened.capacity
    raise UseError(
        f"{path} would be charged beyond its budget of epsilon {epsilon_up(opened.epsilon)} at "
        f"delta {delta_up(opened.delta)}: this needs {100 * needed:.1f} % of the budget, and "
        f"{100 * left:.1f} % is left",
        hint="plan with more noise or fewer steps: `userdp store budget STORE` shows what is left, "
        "and what it buys. Budgets are for the store's life and are never raised",
    )


def cost_of(charge: Charge, opened: RenyiFilter) -> Cost:
    """What a charge takes from a filter; infinite where nothing bounds it."""
    if charge.query_epsilon is not None:
        return opened.of_query(charge.query_epsilon)
    if charge.selection is not None:
        return _of_selection(charge.selection, opened)
    if charge.recorded is not None:
        return opened.of_guarantee(charge.recorded.epsilon, charge.recorded.delta)
    if charge.plan is None or not charge.plan.sampling.covered:
        return Cost(rho=math.inf)
    cost = opened.of_steps(charge.plan.mechanism, steps=charge.stopped)
    if cost is not None:
        return cost
    price = charge.plan.guarantee()
    return opened.of_guarantee(price.epsilon, price.delta)


def _of_selection(selection: PrivateSelection, opened: RenyiFilter) -> Cost:
    curve = base_curve(
        [mechanism_of(plan) for plan in selection.plans],
        score_epsilon=selection.score_epsilon,
        orders=sorted({*rdp.ORDERS, opened.order}),
    )
    rho = selected_curve(curve, selection.repetitions)[opened.order]
    most = max(plan.steps for plan in selection.plans)
    return Cost(rho=rho, steps=selection.repetitions.mean * most)


def prices(history: History) -> Iterator[Guarantee]:
    """What has to be paid for by addition: each series once, and what no series pays for."""
    for declared in history.series.values():
        yield declared.series.guarantee()
    for charge in history.charges.values():
        if charge.series is None:
            yield price_of(charge)


def price_of(charge: Charge) -> Guarantee:
    """The (ε, δ) of a charge by itself; ε is infinite of a run without privacy."""
    if charge.query_epsilon is not None:
        return _per_user(charge.query_epsilon, accountant="pure")
    if charge.selection is not None:
        return charge.selection.guarantee()
    if charge.recorded is not None:
        return charge.recorded
    return charge.plan.guarantee() if charge.plan else _per_user(math.inf, accountant="none")


def refuse_used(path: Path, history: History, what: str) -> None:
    """`UseError` if something was charged, declared, looked at or fixed in a ledger before."""
    fixed = history.total
    if history.budget is not None:
        fixed = history.budget.filter.epsilon, history.budget.filter.delta
    if fixed is not None:
        epsilon, delta = fixed
        raise UseError(
            f"{path} has a total of epsilon {round_up(epsilon)} at delta {delta_up(delta)} already:"
            f" {what} that is fixed anew after a look bounds nothing",
            hint="it holds for the store's life; see `userdp store budget STORE`",
        )
    if history.charges or history.looks or history.series or history.sweeps:
        raise UseError(
            f"something was charged or looked at in {path} before: {what} that is fixed after a "
            "look bounds nothing",
            hint="fix it before anything else is done with the store",
        )


def adjacency_of(charge: Charge) -> Adjacency:
    """Which neighbours a charge is about."""
    if charge.recorded is not None:
        return charge.recorded.adjacency
    return Adjacency.ADD_OR_REMOVE if charge.plan is None else charge.plan.sampling.adjacency


def _per_user(epsilon: float, *, accountant: str) -> Guarantee:
    return Guarantee(
        epsilon=epsilon,
        delta=0.0,
        unit=PrivacyUnit.USER,
        adjacency=Adjacency.ADD_OR_REMOVE,
        sampling=NONE,
        accountant=accountant,
    )
