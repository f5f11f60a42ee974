"""The parts of which ledgers and claims are made: what was released, each with its price.

A line of a store's ledger charges these people for one part, and a claim adds parts up
(`userdp.claims.lineage`). A part is data: ledgers and exports hold it under its ``kind``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, TypeAlias

from userdp.accounting import rdp
from userdp.accounting.filters import ACCOUNTANT as FILTER
from userdp.accounting.filters import Cost, RenyiFilter
from userdp.accounting.private_selection import base_curve, selected_curve
from userdp.core.vocabulary import (
    MIXED,
    NONE,
    Adjacency,
    Guarantee,
    PrivacyUnit,
    require_positive,
)
from userdp.plans import FixedGrid, Plan, PrivateSelection, Tuning
from userdp.plans.tuning_price import mechanism_of
from userdp.sampling import PoissonUsers

_per_user = partial(Guarantee, unit=PrivacyUnit.USER, adjacency=Adjacency.ADD_OR_REMOVE)

PriceOfPlan: TypeAlias = Callable[[Plan, float | None], Guarantee]
"""What all steps of a plan cost at a δ, or at the plan's own δ, by another accountant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One thing that was released of people's text: one of the classes below, which hold data.

    Args:
        id: random, from the ledger that it was charged in.
    """

    kind: ClassVar[str]

    id: str

    @property
    def in_words(self) -> str:
        """What it is."""
        match self:
            case Steps(plan=plan):
                return f"training ({plan.algorithm}, {plan.steps} steps)"
            case Choice(tuning=tuning):
                return tuning.in_words
            case Query(name=name):
                return f"DP answer: {name}"
            case Bound(what=words) | Unclaimed(why=words):
                return words
        raise NotImplementedError

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans whose steps this part pays for; it then has a price at any δ.

        A part without plans has one fixed (ε, δ).
        """
        match self:
            case Steps(plan=plan):
                return (plan,)
            case Choice(tuning=tuning):
                return tuning.plans
        return ()

    def guarantee(
        self, *, delta: float | None = None, price: PriceOfPlan | None = None
    ) -> Guarantee:
        """Its claim, at its own δ by default; ε is infinite where it has none."""
        match self:
            case Steps(plan=plan):
                return price(plan, delta) if price else plan.guarantee(delta=delta)
            case Choice(tuning=FixedGrid() as grid):
                return grid.guarantee(delta=delta, price=price)
            case Choice(tuning=declared):
                return declared.guarantee(delta=delta)
            case Query(pure_epsilon=pure):
                all_asked = PoissonUsers.kind  # q = 1
                return _per_user(epsilon=pure, delta=0.0, sampling=all_asked, accountant="pure")
            case Bound(bound=bound):
                return bound
        return _per_user(epsilon=math.inf, delta=delta or 0.0, sampling=NONE, accountant="none")

    def cost(self, opened: RenyiFilter) -> Cost:
        """What it takes from a filter; infinite where nothing bounds it."""
        match self:
            case Choice(tuning=PrivateSelection() as selection):
                return _cost_of_selection(selection, opened)
            case Steps(plan=plan) if plan.sampling.covered:
                cost = opened.of_steps(plan.mechanism)
                if cost is not None:
                    return cost
        own = self.guarantee()
        if math.isinf(own.epsilon):
            return Cost(rho=math.inf)
        return opened.of_guarantee(own.epsilon, own.delta)


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps(Part):
    """The noisy steps of one run: all that its plan allows, whether or not they ran.

    When a run stopped may have been chosen by what its steps released, and ε of a number of steps
    that the outputs chose bounds nothing.

    Args:
        plan: of the run.
    """

    kind: ClassVar[str] = "run"

    plan: Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice(Part):
    """The best of several runs, chosen by DP scores: all that was tried is in its price."""

    kind: ClassVar[str] = "choice"

    tuning: Tuning


@dataclass(frozen=True, kw_only=True, slots=True)
class Query(Part):
    """A statistic of these people's data, drawn once.

    Args:
        name: what was asked; public.
        pure_epsilon: it is (ε, 0)-DP per user, add-or-remove; > 0, at most 700.
    """

    kind: ClassVar[str] = "query"

    name: str
    pure_epsilon: float

    def __post_init__(self) -> None:
        require_positive("pure_epsilon", self.pure_epsilon, at_most=700.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound(Part):
    """A guarantee with a finite ε that was computed elsewhere, such as that of a federation's plan.

    Args:
        what: it is of, in words.
        bound: the guarantee.
    """

    kind: ClassVar[str] = "bound"

    what: str
    bound: Guarantee


@dataclass(frozen=True, kw_only=True, slots=True)
class Unclaimed(Part):
    """Something that has no ε: of a model that descends from it nothing is claimed.

    Args:
        why: in words, as a clause.
    """

    kind: ClassVar[str] = "unclaimed"

    why: str = "people's text was trained on without privacy"


def _cost_of_selection(selection: PrivateSelection, opened: RenyiFilter) -> Cost:
    curve = base_curve(
        [mechanism_of(plan) for plan in selection.plans],
        score_epsilon=selection.score_epsilon,
        orders=sorted({*rdp.ORDERS, opened.order}),
    )
    rho = selected_curve(curve, selection.repetitions)[opened.order]
    most = max(plan.steps for plan in selection.plans)
    return Cost(rho=rho, steps=selection.repetitions.mean * most)


def of_budget(run_id: str, opened: RenyiFilter, part: Part) -> Bound:
    """The total of a filter, which is claimed whole from the first charge on, here ``part``."""
    what = f"all of a budget that was fixed before its first use (filter of order {opened.order:g})"
    total = _per_user(epsilon=opened.epsilon, delta=opened.delta, sampling=MIXED, accountant=FILTER)
    return Bound(id=run_id, what=what, bound=replace(total, adjacency=part.guarantee().adjacency))


def of_run(run_id: str, plan: Plan | None) -> Part:
    """What a run is charged for as a whole; without a plan it has no privacy."""
    return Unclaimed(id=run_id) if plan is None else recorded(Steps(id=run_id, plan=plan))


def recorded(part: Part) -> Part:
    """A part as every reader can decode it.

    Of a plan whose sampling or noise is somebody's own class, the price is recorded in its place;
    of one that no accountant covers there is none, as without privacy.
    """
    if not isinstance(part, Steps):
        return part
    plan = part.plan
    kinds = (type(plan.sampling), type(plan.noise))
    own = [kind for kind in kinds if not kind.__module__.startswith("userdp.")]
    if not own:
        return part
    if not plan.sampling.covered:
        return Unclaimed(id=part.id)
    what = f"training by {own[0].__module__}.{own[0].__name__}, as recorded"
    return Bound(id=part.id, what=what, bound=part.guarantee())
