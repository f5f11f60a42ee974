"""The budget of a store's people: what it refuses, what was spent of it, and what is left.

A *filter* is fixed before the first charge and the first look, for the store's life. It counts
Rényi divergences of one order (`userdp.accounting.filters`), and claims the whole budget from the
first charge on. Without one, charges add up.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace
from typing import Any

from userdp.accounting.filters import Cost, RenyiFilter
from userdp.core.errors import UseError
from userdp.core.vocabulary import delta_up, epsilon_up, round_up
from userdp.ledger.charged_parts import Steps, of_run
from userdp.ledger.lines import Charge
from userdp.ledger.store_history import History
from userdp.plans import Plan

_MOST_RUNS = 10**6


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
        "spent": opened.spent(costs.values()) / opened.capacity,
        "buys": _buys(history, opened),
        "lines": lines,
    }


def share_of(opened: RenyiFilter, plan: Plan) -> float:
    """The part of a budget that a run of ``plan`` takes."""
    return of_run("the next run", plan).cost(opened).rho / opened.capacity


def _line(history: History, charge: Charge) -> dict[str, Any]:
    part, ended = charge.pays_for, history.settled.get(charge.run_id)
    price, what = part.guarantee(), part.in_words
    if isinstance(part, Steps):
        what = f"{history.steps_of(charge)} of {part.plan.steps} steps ({part.plan.algorithm})"
    final = "settled early" if ended is not None and ended.early else "settled"
    return {
        "id": charge.run_id,
        "when": charge.when,
        "what": what,
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
