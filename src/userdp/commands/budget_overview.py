"""What ``userdp store budget`` shows: what was charged to a store's people, and what is left."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from userdp.accounting.filters import Cost, RenyiFilter
from userdp.core.vocabulary import delta_up
from userdp.ledger import Charge, History
from userdp.ledger.charged_parts import of_run
from userdp.plans import Plan

_MOST_RUNS = 10**6


def overview(history: History) -> dict[str, Any]:
    """A store's ledger as people read it; operator-only, since it holds times.

    Returns:
        ``kind``, ``"filter"`` or ``"none"``. Of a budget, and else None: its ``epsilon``,
        ``delta`` and ``order``, when it was ``opened``, the share of it that is ``spent``, and what
        the rest ``buys``: so many ``runs`` more that are ``like`` the last private one (None before
        there was one). Under ``lines`` each charge, oldest first: its ``id``, ``when`` it was made,
        ``what`` it is, its own ``epsilon`` and ``delta``, its ``share`` of the budget, and whether
        it is ``"open"``, ``"settled"`` or ``"settled early"``.
    """
    budget, lines = history.budget, [_line(history, one) for one in history.charges.values()]
    if budget is None:
        unknown = ("epsilon", "delta", "order", "opened", "spent", "buys")
        return {"kind": "none", **dict.fromkeys(unknown), "lines": lines}
    opened, costs = budget.filter, history.costs(budget.filter)
    for line in lines:
        line["share"] = costs[line["id"]].rho / opened.capacity
    return {
        "kind": "filter",
        "epsilon": opened.epsilon,
        "delta": opened.delta,
        "order": opened.order,
        "opened": budget.when,
        "spent": spent(history, opened),
        "buys": _buys(history, opened),
        "lines": lines,
    }


def spent(history: History, opened: RenyiFilter) -> float:
    """The part of a budget that all charges took."""
    return opened.spent(history.costs(opened).values()) / opened.capacity


def share_of(opened: RenyiFilter, plan: Plan) -> float:
    """The part of a budget that a run of ``plan`` takes."""
    return of_run("the next run", plan).cost(opened).rho / opened.capacity


def _line(history: History, charge: Charge) -> dict[str, Any]:
    _, ended = history.settled.get(charge.run_id, (0, None))
    price = charge.pays_for.guarantee()
    final = "settled early" if ended is not None and ended.early else "settled"
    return {
        "id": charge.run_id,
        "when": charge.when,
        "what": charge.pays_for.in_words,
        "epsilon": price.epsilon,
        "delta": price.delta,
        "share": None,
        "state": final if history.is_final(charge) else "open",
    }


def _buys(history: History, opened: RenyiFilter) -> dict[str, Any] | None:
    """How many runs like the last private one still fit."""
    plans = [one.plan for one in history.charges.values() if one.plan is not None]
    plan = next((one for one in reversed(plans) if one.sampling.covered), None)
    if plan is None:
        return None
    before = history.costs(opened).values()
    one = of_run("the next run", plan).cost(opened)

    def exceeded(times: int) -> bool:
        more = Cost(rho=one.rho * times, delta=one.delta * times, steps=one.steps * times)
        return not opened.admits([*before, more])

    delta = delta_up(plan.budget.target_delta)
    return {
        "like": f"{plan.steps} steps of {plan.sampling.words.title}, δ = {delta}",
        "runs": bisect_left(range(1, _MOST_RUNS + 1), True, key=exceeded),
    }
