"""A store's ledger as people read it: what was spent when on what, what is left, what it buys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from userdp.accounting.filters import Cost, RenyiFilter
from userdp.accounting.roots import least
from userdp.errors import UseError
from userdp.ledger.budget import cost_of, price_of, prices
from userdp.ledger.charges import Charge
from userdp.ledger.history import History
from userdp.plans import Plan
from userdp.vocabulary import delta_up

_MOST_NOISE = 1e4
_MOST_RUNS = 10**6


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """One line: something that was charged.

    Args:
        id: of the run, the answer or the selection.
        when: date and time in UTC; None in ledgers of before that was noted.
        what: in words.
        paid_by: ``"filter"``, ``"series"`` or ``"itself"``.
        epsilon: of it by itself, at its own δ; infinite of what has none.
        delta: that δ.
        share: of the budget, from 0 to 1; of the series where that pays; None without either.
        state: ``"settled"``, ``"settled early"`` or ``"open"``.
    """

    id: str
    when: str | None
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
        epsilon: the largest ε, by itself, of one more run of its draws, steps and δ.
        noise_multiplier: σ of that run: the least one that still fits.
    """

    like: str
    runs: int
    epsilon: float
    noise_multiplier: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """A store's ledger, as people read it.

    Args:
        kind: ``"filter"``, ``"total"`` or ``"none"``.
        epsilon: of the budget; None without one.
        delta: likewise.
        order: of the filter; None without one.
        opened: when the filter was opened.
        spent: the share of the budget that is spent, from 0 to 1; None without one.
        lines: oldest first.
        series: each declared series in words, with what of it was taken.
        buys: None without a budget, or before the first private run.
    """

    kind: str
    epsilon: float | None
    delta: float | None
    order: float | None
    opened: str | None
    spent: float | None
    lines: tuple[Spent, ...]
    series: tuple[str, ...]
    buys: Buys | None


def overview(history: History) -> Overview:
    """A store's ledger as people read it; operator-only, since it holds times."""
    series = tuple(
        f"{one.series.in_words}: {one.runs} of them taken" for one in history.series.values()
    )
    lines = tuple(_lines(history))
    last = next((c for c in reversed(history.charges.values()) if _buyable(c)), None)
    plan = None if last is None else last.plan
    common: dict[str, Any] = {"lines": lines, "series": series}
    if history.budget is not None:
        opened = history.budget.filter
        costs = [cost_of(charge, opened) for charge in history.charges.values()]
        return Overview(
            kind="filter",
            epsilon=opened.epsilon,
            delta=opened.delta,
            order=opened.order,
            opened=history.budget.when,
            spent=share_of(history),
            buys=None if plan is None else _bought_of_filter(opened, costs, plan),
            **common,
        )
    if history.total is not None:
        epsilon, delta = history.total
        paid = list(prices(history))
        spent = math.fsum(price.epsilon for price in paid)
        left = (epsilon - spent, delta - math.fsum(price.delta for price in paid))
        return Overview(
            kind="total",
            epsilon=epsilon,
            delta=delta,
            order=None,
            opened=None,
            spent=spent / epsilon,
            buys=None if plan is None else _bought_of_total(*left, plan),
            **common,
        )
    return Overview(
        kind="none",
        epsilon=None,
        delta=None,
        order=None,
        opened=None,
        spent=None,
        buys=None,
        **common,
    )


def share_of(history: History, plan: Plan | None = None) -> float:
    """The part of a store's budget that is spent; or that a run of this plan would take."""
    assert history.budget is not None
    opened = history.budget.filter
    if plan is not None:
        return _cost(plan, opened).rho / opened.capacity
    return (
        opened.spent(cost_of(charge, opened) for charge in history.charges.values())
        / opened.capacity
    )


def _cost(plan: Plan, opened: RenyiFilter) -> Cost:
    return cost_of(Charge(run_id="", at=0, plan=plan), opened)


def _buyable(charge: Charge) -> bool:
    return charge.plan is not None and charge.plan.sampling.covered


def _lines(history: History) -> Iterator[Spent]:
    total = None if history.total is None else history.total[0]
    for charge in history.charges.values():
        price = price_of(charge)
        paid_by, share = "itself", None if total is None else price.epsilon / total
        if history.budget is not None:
            opened = history.budget.filter
            paid_by, share = "filter", cost_of(charge, opened).rho / opened.capacity
        elif charge.series is not None:
            declared = history.series[charge.series].series
            paid_by, share = "series", 1 / declared.runs if charge.plan else None
        state = "settled" if charge.settled else "open"
        yield Spent(
            id=charge.run_id,
            when=charge.when,
            what=_what(charge),
            paid_by=paid_by,
            epsilon=price.epsilon,
            delta=price.delta,
            share=share,
            state="settled early" if charge.run_id in history.halted else state,
        )


def _what(charge: Charge) -> str:
    if charge.query_epsilon is not None:
        return f"DP answer: {charge.query_name}"
    if charge.selection is not None:
        return charge.selection.in_words
    if charge.recorded is not None:
        return charge.as_recorded
    if charge.plan is None:
        return "training without privacy"
    again = ", charged again" if charge.again else ""
    return f"{charge.steps} of {charge.plan.steps} steps ({charge.plan.algorithm}){again}"


def _bought_of_filter(opened: RenyiFilter, costs: list[Cost], plan: Plan) -> Buys | None:
    def fits(one: Cost, times: int = 1) -> bool:
        whole = Cost(rho=one.rho * times, delta=one.delta * times, steps=one.steps * times)
        return opened.admits([*costs, whole])

    like = _cost(plan, opened)
    runs = int(min(opened.left(costs) / like.rho, _MOST_RUNS))
    while runs and not fits(like, runs):  # the reserve of δ may be what ends first
        runs -= 1
    noise = least(
        lambda multiplier: not fits(_cost(_with_noise(plan, multiplier), opened)),
        start=plan.noise.multiplier,
        most=_MOST_NOISE,
        smallest=1e-2,
        relative=1e-4,
    )
    return None if noise is None else _buys(plan, runs, noise)


def _bought_of_total(epsilon: float, delta: float, plan: Plan) -> Buys | None:
    own = plan.guarantee()
    if not (epsilon > 0 and delta >= own.delta):
        return None
    runs = int(min(epsilon / own.epsilon, delta / own.delta, _MOST_RUNS))
    target = replace(plan.budget, target_epsilon=epsilon)
    try:
        noise = replace(plan, budget=target).calibrated().noise.multiplier
    except UseError:  # next to nothing is left
        return None
    return _buys(plan, runs, noise)


def _buys(plan: Plan, runs: int, noise: float) -> Buys:
    delta = delta_up(plan.budget.target_delta)
    return Buys(
        like=f"{plan.steps} steps of {plan.sampling.words.title}, δ = {delta}",
        runs=runs,
        epsilon=_with_noise(plan, noise).guarantee().epsilon,
        noise_multiplier=noise,
    )


def _with_noise(plan: Plan, multiplier: float) -> Plan:
    return replace(plan, noise=replace(plan.noise, multiplier=multiplier))
