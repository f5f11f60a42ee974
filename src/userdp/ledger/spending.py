"""What was spent when on what of a store's budget, what is left, and what that buys."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from userdp.accounting.filters import Cost, RenyiFilter
from userdp.core.vocabulary import delta_up
from userdp.ledger.parts import Steps
from userdp.ledger.store_history import Charge, History
from userdp.plans import Plan

_MOST_RUNS = 10**6


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """One line: something that was charged.

    Args:
        id: of the run, the answer or the selection.
        when: date and time in UTC.
        what: in words.
        paid_by: ``"filter"`` or ``"itself"``.
        epsilon: of it by itself, at its own δ; infinite of what has none.
        delta: that δ.
        share: of the budget, from 0 to 1; None without one.
        state: ``"settled"``, ``"settled early"`` or ``"open"``.
    """

    id: str
    when: str
    what: str
    paid_by: str
    epsilon: float
    delta: float
    share: float | None
    state: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Buys:
    """What is left of a budget would pay for.

    Args:
        like: the last private run, in words.
        runs: more runs like it.
    """

    like: str
    runs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """What was spent when on what, what is left, and what that buys; operator-only.

    Args:
        kind: ``"filter"`` or ``"none"``.
        epsilon: of the budget; None without one, like the five that follow.
        delta: likewise.
        order: of the filter.
        opened: when the filter was opened.
        spent: the share of the budget that is spent, from 0 to 1.
        buys: None before the first private run, too.
        lines: oldest first.
    """

    kind: str = "none"
    epsilon: float | None = None
    delta: float | None = None
    order: float | None = None
    opened: str | None = None
    spent: float | None = None
    lines: tuple[Spent, ...]
    buys: Buys | None = None


def overview(history: History) -> Overview:
    """A store's ledger as people read it; operator-only, since it holds times."""
    whole = Overview(lines=tuple(_spent(history, charge) for charge in history.charges.values()))
    if history.budget is None:
        return whole
    opened = history.budget.filter
    return replace(
        whole,
        kind="filter",
        epsilon=opened.epsilon,
        delta=opened.delta,
        order=opened.order,
        opened=history.budget.when,
        spent=opened.spent(_costs(history, opened)) / opened.capacity,
        buys=_buys(history, opened),
    )


def share_of(opened: RenyiFilter, plan: Plan) -> float:
    """The part of a budget that a run of ``plan`` takes."""
    return Charge.of_next_run(plan).cost(opened).rho / opened.capacity


def _costs(history: History, opened: RenyiFilter) -> list[Cost]:
    return [charge.cost(opened) for charge in history.charges.values()]


def _spent(history: History, charge: Charge) -> Spent:
    price, ended, share = charge.part.guarantee(), charge.settlement, None
    if history.budget is not None:
        opened = history.budget.filter
        share = charge.cost(opened).rho / opened.capacity
    early = ended is not None and ended.early
    return Spent(
        id=charge.run_id,
        when=charge.line.when,
        what=_what(charge),
        paid_by="filter" if history.budget else "itself",
        epsilon=price.epsilon,
        delta=price.delta,
        share=share,
        state="settled early" if early else "settled" if charge.settled else "open",
    )


def _what(charge: Charge) -> str:
    part = charge.part
    if not isinstance(part, Steps):
        return part.in_words
    again = ", charged again" if charge.line.again else ""
    return f"{charge.steps} of {part.plan.steps} steps ({part.plan.algorithm}){again}"


def _buys(history: History, opened: RenyiFilter) -> Buys | None:
    """How many runs like the last private one still fit."""
    plans = [one.plan for one in history.charges.values() if one.plan is not None]
    plan = next((one for one in reversed(plans) if one.sampling.covered), None)
    if plan is None:
        return None
    before, one = _costs(history, opened), Charge.of_next_run(plan).cost(opened)

    def exceeded(times: int) -> bool:
        more = Cost(rho=one.rho * times, delta=one.delta * times, steps=one.steps * times)
        return not opened.admits([*before, more])

    delta = delta_up(plan.budget.target_delta)
    return Buys(
        like=f"{plan.steps} steps of {plan.sampling.words.title}, δ = {delta}",
        runs=bisect_left(range(1, _MOST_RUNS + 1), True, key=exceeded),
    )
