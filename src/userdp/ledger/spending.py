"""What was spent when on what of a store's budget, what is left, and what that buys."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from userdp.accounting.filters import Cost, RenyiFilter
from userdp.core.vocabulary import delta_up
from userdp.ledger.parts import Steps, of_run
from userdp.ledger.store_history import Charge, History
from userdp.plans import Plan

_MOST_RUNS = 10**6


def overview(history: History) -> dict[str, Any]:
    """A store's ledger as people read it; operator-only, since it holds times.

    Returns:
        ``kind``, ``"filter"`` or ``"none"``. Of a budget, and else None: its ``epsilon``,
        ``delta`` and ``order``, when it was ``opened``, the share of it that is ``spent``, and what
        the rest ``buys``: so many ``runs`` more that are ``like`` the last private one (None before
        there was one). Under ``lines`` each charge, oldest first: its ``id``, ``when`` it was made,
        ``what`` it is, what it is ``paid_by``, its own ``epsilon`` and ``delta``, its ``share`` of
        the budget, and whether it is ``"open"``, ``"settled"`` or ``"settled early"``.
    """
    opened = None if history.budget is None else history.budget.filter
    charges = list(history.charges.values())
    lines = [_line(charge, opened) for charge in charges]
    if history.budget is None or opened is None:
        unknown = ("epsilon", "delta", "order", "opened", "spent", "buys")
        return {"kind": "none", **dict.fromkeys(unknown), "lines": lines}
    return {
        "kind": "filter",
        "epsilon": opened.epsilon,
        "delta": opened.delta,
        "order": opened.order,
        "opened": history.budget.when,
        "spent": opened.spent(charge.cost(opened) for charge in charges) / opened.capacity,
        "buys": _buys(charges, opened),
        "lines": lines,
    }


def share_of(opened: RenyiFilter, plan: Plan) -> float:
    """The part of a budget that a run of ``plan`` takes."""
    return of_run("the next run", plan).cost(opened).rho / opened.capacity


def _line(charge: Charge, opened: RenyiFilter | None) -> dict[str, Any]:
    part, ended = charge.part, charge.settlement
    price, what = part.guarantee(), part.in_words
    if isinstance(part, Steps):
        again = ", charged again" if charge.line.again else ""
        what = f"{charge.steps} of {part.plan.steps} steps ({part.plan.algorithm}){again}"
    early = ended is not None and ended.early
    return {
        "id": charge.run_id,
        "when": charge.line.when,
        "what": what,
        "paid_by": "filter" if opened else "itself",
        "epsilon": price.epsilon,
        "delta": price.delta,
        "share": charge.cost(opened).rho / opened.capacity if opened else None,
        "state": "settled early" if early else "settled" if charge.settled else "open",
    }


def _buys(charges: list[Charge], opened: RenyiFilter) -> dict[str, Any] | None:
    """How many runs like the last private one still fit."""
    plans = [one.plan for one in charges if one.plan is not None]
    plan = next((one for one in reversed(plans) if one.sampling.covered), None)
    if plan is None:
        return None
    before = [charge.cost(opened) for charge in charges]
    one = of_run("the next run", plan).cost(opened)

    def exceeded(times: int) -> bool:
        more = Cost(rho=one.rho * times, delta=one.delta * times, steps=one.steps * times)
        return not opened.admits([*before, more])

    delta = delta_up(plan.budget.target_delta)
    return {
        "like": f"{plan.steps} steps of {plan.sampling.words.title}, δ = {delta}",
        "runs": bisect_left(range(1, _MOST_RUNS + 1), True, key=exceeded),
    }
