"""What the people of a store may be charged in all: a total that is added up, or one with a filter.

Both are fixed before the first charge and the first look, for the store's life. A *total* admits
charges while their (ε_i, δ_i) add up to at most its own (Rogers et al. 2016). A *filter* counts
Rényi divergences of one order instead (`userdp.accounting.filters`), admits several times as much,
and claims the whole budget from the first charge on.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

from userdp.accounting.filters import Cost, RenyiFilter
from userdp.accounting.roots import least
from userdp.core.errors import UseError
from userdp.core.vocabulary import delta_up, epsilon_up, round_up
from userdp.ledger.history import Charge, History
from userdp.plans import Plan

_MOST_NOISE = 1e4
_MOST_RUNS = 10**6


def refuse_beyond(history: History) -> None:
    """`UseError` if all charges, the last included, exceed what was fixed before the first."""
    path = history.path
    if history.fixed is None:
        return
    # What counts people in different ways does not add up to anything.
    if len({charge.adjacency for charge in history.charges.values()}) > 1:
        raise UseError(
            f"{path} would hold charges of different adjacencies, and no total bounds their sum",
            hint="keep records of several owners in a store of their own",
        )
    if history.total is not None and not _within_total(history):
        epsilon, delta = history.total
        raise UseError(
            f"{path} would be charged beyond the total that was fixed for it before the first "
            f"charge: epsilon {epsilon_up(epsilon)} at delta {delta_up(delta)}",
            hint="plan for what is left of it; a total that is raised after a look bounds nothing",
        )
    if history.budget is not None:
        _refuse_beyond_filter(history, history.budget.filter)


def _within_total(history: History) -> bool:
    prices = list(history.prices())
    epsilon, delta = history.total or (math.inf, 1.0)
    spent = math.fsum(price.epsilon for price in prices)
    return spent <= epsilon and math.fsum(price.delta for price in prices) <= delta


def _refuse_beyond_filter(history: History, opened: RenyiFilter) -> None:
    path = history.path
    *before, new = (charge.cost(opened) for charge in history.charges.values())
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


def refuse_used(history: History, what: str) -> None:
    """`UseError` if something was charged, declared, looked at or fixed in a ledger before."""
    path = history.path
    if history.fixed is not None:
        epsilon, delta = history.fixed
        raise UseError(
            f"{path} has a total of epsilon {round_up(epsilon)} at delta {delta_up(delta)} already:"
            f" {what} that is fixed anew after a look bounds nothing",
            hint="it holds for the store's life; see `userdp store budget STORE`",
        )
    if history.charges or history.looks or history.series or history.tunings:
        raise UseError(
            f"something was charged or looked at in {path} before: {what} that is fixed after a "
            "look bounds nothing",
            hint="fix it before anything else is done with the store",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """One line: something that was charged.

    Args:
        id: of the run, the answer or the selection.
        when: date and time in UTC.
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
    """What was spent when on what, what is left, and what that buys; operator-only.

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
    budget, fixed = history.budget, history.fixed
    epsilon, delta = (None, None) if fixed is None else fixed
    return Overview(
        kind="filter" if budget else "none" if fixed is None else "total",
        epsilon=epsilon,
        delta=delta,
        order=None if budget is None else budget.filter.order,
        opened=None if budget is None else budget.when,
        spent=None if fixed is None else share_of(history),
        lines=tuple(_spent(history, charge) for charge in history.charges.values()),
        series=tuple(
            f"{one.series.in_words}: {one.runs} of them taken" for one in history.series.values()
        ),
        buys=None if fixed is None else _buys(history),
    )


def share_of(history: History, plan: Plan | None = None) -> float:
    """The part of a store's budget or total that is spent; or that a run of ``plan`` would take."""
    if history.budget is not None:
        opened = history.budget.filter
        if plan is not None:
            return _next(plan).cost(opened).rho / opened.capacity
        return opened.spent(one.cost(opened) for one in history.charges.values()) / opened.capacity
    assert history.total is not None
    prices = history.prices() if plan is None else (plan.guarantee(),)
    return math.fsum(price.epsilon for price in prices) / history.total[0]


def _next(plan: Plan) -> Charge:
    return Charge(run_id="the next run", at=0, plan=plan)


def _spent(history: History, charge: Charge) -> Spent:
    price = charge.price()
    paid_by, share = "itself", price.epsilon / history.total[0] if history.total else None
    if history.budget is not None:
        opened = history.budget.filter
        paid_by, share = "filter", charge.cost(opened).rho / opened.capacity
    elif charge.series is not None:
        runs = history.series[charge.series].series.runs
        paid_by, share = "series", 1 / runs if charge.plan else None
    return Spent(
        id=charge.run_id,
        when=charge.when,
        what=_what(charge),
        paid_by=paid_by,
        epsilon=price.epsilon,
        delta=price.delta,
        share=share,
        state="settled early" if charge.early else "settled" if charge.settled else "open",
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


def _buys(history: History) -> Buys | None:
    """Runs like the last private one that still fit, and the loudest single one."""
    plans = [one.plan for one in history.charges.values() if one.plan is not None]
    plan = next((one for one in reversed(plans) if one.sampling.covered), None)
    if plan is None:
        return None

    def with_noise(multiplier: float) -> Plan:
        return replace(plan, noise=replace(plan.noise, multiplier=multiplier))

    runs = bisect_left(range(1, _MOST_RUNS + 1), True, key=lambda n: not _fits(history, plan, n))
    noise = least(
        lambda multiplier: not _fits(history, with_noise(multiplier)),
        start=plan.noise.multiplier,
        most=_MOST_NOISE,
        smallest=1e-2,
        relative=1e-4,
    )
    if noise is None:
        return None
    delta = delta_up(plan.budget.target_delta)
    return Buys(
        like=f"{plan.steps} steps of {plan.sampling.words.title}, δ = {delta}",
        runs=runs,
        epsilon=with_noise(noise).guarantee().epsilon,
        noise_multiplier=noise,
    )


def _fits(history: History, plan: Plan, times: int = 1) -> bool:
    """Whether what is left would pay for so many runs of a plan."""
    if history.budget is not None:
        opened, one = history.budget.filter, _next(plan).cost(history.budget.filter)
        before = [charge.cost(opened) for charge in history.charges.values()]
        more = Cost(rho=one.rho * times, delta=one.delta * times, steps=one.steps * times)
        return opened.admits([*before, more])
    assert history.total is not None
    price, paid = plan.guarantee(), list(history.prices())
    epsilon = math.fsum([*(one.epsilon for one in paid), times * price.epsilon])
    delta = math.fsum([*(one.delta for one in paid), times * price.delta])
    return epsilon <= history.total[0] and delta <= history.total[1]
