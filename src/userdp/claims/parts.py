"""What a claim is made of: parts, each with a price; and conditions, which no price covers.

Both are data, under names that ledgers and exports hold. How they are priced and said stands here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, Self, TypeAlias

from userdp.accounting.filters import ACCOUNTANT as FILTER
from userdp.accounting.filters import RenyiFilter
from userdp.core.vocabulary import MIXED, NONE, Adjacency, Guarantee, PrivacyUnit
from userdp.plans import FixedGrid, Plan, Series, Tuning
from userdp.plans.origin import NonPrivateLook
from userdp.sampling import PoissonUsers

PriceOfPlan: TypeAlias = Callable[[Plan, float | None], Guarantee]
"""What all steps of a plan cost at a δ, or at the plan's own."""


def own_price(plan: Plan, delta: float | None) -> Guarantee:
    """By the plan's own accountant."""
    return plan.guarantee(delta=delta)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One thing that was released of people's text; one of the classes below.

    Args:
        id: random, from the ledger that it was charged in.
    """

    kind: ClassVar[str]

    id: str

    @property
    def in_words(self) -> str:
        """What it is."""
        match self:
            case Steps(plan=plan, charges=charges):
                times = f", charged {charges} times" if charges > 1 else ""
                return f"training ({plan.algorithm}, {plan.steps} steps{times})"
            case Choice(tuning=declared) | OfSeries(series=declared):
                return declared.in_words
            case Query(name=name):
                return f"DP answer: {name}"
            case Filtered(filter=opened):
                return (
                    "a budget that was fixed before its first use, all of it (Rényi filter of "
                    f"order {opened.order:g})"
                )
            case Bound(what=words) | Unclaimed(why=words):
                return words
        raise TypeError(f"{self!r} is no part of a claim")

    @property
    def has_delta(self) -> bool:
        """Whether a δ may be chosen for it."""
        return isinstance(self, Steps | Choice | OfSeries)

    def guarantee(self, *, delta: float | None = None, price: PriceOfPlan = own_price) -> Guarantee:
        """Its claim, at its own δ by default; ε is infinite where it has none."""
        match self:
            case Steps(plan=plan, charges=charges):
                once = price(plan, None if delta is None else delta / charges)
                in_all = min(once.delta * charges, math.nextafter(1.0, 0.0))
                return replace(once, epsilon=once.epsilon * charges, delta=in_all)
            case Choice(tuning=FixedGrid() as grid):
                return grid.guarantee(delta=delta, price=price)
            case Choice(tuning=declared) | OfSeries(series=declared):
                return declared.guarantee(delta=delta)
            case Query(pure_epsilon=epsilon):  # every user is asked: q = 1
                return _per_user(epsilon, 0.0, sampling=PoissonUsers.kind, accountant="pure")
            case Filtered(filter=opened):
                total = _per_user(opened.epsilon, opened.delta, sampling=MIXED, accountant=FILTER)
                return replace(total, adjacency=self.adjacency)
            case Bound(bound=bound):
                return bound
        return _per_user(math.inf, delta or 0.0, sampling=NONE, accountant="none")


def _per_user(epsilon: float, delta: float, *, sampling: str, accountant: str) -> Guarantee:
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        unit=PrivacyUnit.USER,
        adjacency=Adjacency.ADD_OR_REMOVE,
        sampling=sampling,
        accountant=accountant,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps(Part):
    """The noisy steps of one run: all that its plan allows, whether or not they ran.

    When a run stopped may have been chosen by what its steps released, and ε of a number of steps
    that the outputs chose bounds nothing.

    Args:
        plan: of the run.
        further: ids of further charges of the whole plan: of a run that went on from a copy, or
            from a folder that could not be told from one. The charges compose by addition.
    """

    kind: ClassVar[str] = "run"

    plan: Plan
    further: tuple[str, ...] = ()

    @property
    def charges(self) -> int:
        """How often the whole plan was charged."""
        return 1 + len(self.further)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice(Part):
    """The best of several runs, chosen by DP scores: all that was tried is in its price."""

    kind: ClassVar[str] = "choice"

    tuning: Tuning


@dataclass(frozen=True, kw_only=True, slots=True)
class OfSeries(Part):
    """All runs and answers of a series that was declared before the first of them."""

    kind: ClassVar[str] = "series"

    series: Series


@dataclass(frozen=True, kw_only=True, slots=True)
class Query(Part):
    """A statistic with pure (ε, 0)-DP per user, add-or-remove.

    Args:
        name: what was asked; public.
        pure_epsilon: its ε.
    """

    kind: ClassVar[str] = "query"

    name: str
    pure_epsilon: float


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
class Filtered(Part):
    """All that a filter admits, however much of it was spent: its δ is fixed, as its ε is.

    Args:
        filter: total and order, fixed before the first use.
        adjacency: of what it was charged with.
    """

    kind: ClassVar[str] = "filter"

    filter: RenyiFilter
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE


@dataclass(frozen=True, kw_only=True, slots=True)
class Unclaimed(Part):
    """Something that has no ε: of a model that descends from it nothing is claimed.

    Args:
        why: in words.
    """

    kind: ClassVar[str] = "unclaimed"

    why: str


class ConditionKind(StrEnum):
    """What a claim may rest on that no price covers; JSON knows it by its value.

    Attributes:
        clause: follows "provided that".
        of_store: the same of everything that was charged in a store, where that is said otherwise.
    """

    clause: str
    of_store: str

    def __new__(cls, value: str, clause: str, of_store: str | None = None) -> Self:
        """A member that is ``value``."""
        one = str.__new__(cls, value)
        one._value_, one.clause, one.of_store = value, clause, of_store or clause
        return one

    LOOKS = (
        "exact-looks",
        "nothing of its training was chosen by the exact numbers that {told} showed its operator "
        "before",
        "nothing that was charged here was chosen by the exact numbers that {told} showed its "
        "operator before",
    )
    BASE = (
        "base-of-unknown-origin",
        "the model that it began from ({told}) had learned nothing of these people",
    )
    MEMORY = (
        "weights-changed-in-memory",
        "the weights in memory that it began from, which are not those in the files of {told}, had "
        "learned nothing of these people",
    )
    ADAPTERS = (
        "adapters-of-unknown-origin",
        "the adapters that it began with ({told}) had learned nothing of these people",
    )
    PLAN = (
        "plan-from-exact-numbers",
        "what its plan was chosen from ({told}) says nothing of these people",
        "what plans were chosen from ({told}) says nothing of these people",
    )
    COPY = (
        "copied-ledger",
        "no other copy of the store or of its ledger was charged, and no charge was taken back "
        "with it ({told})",
    )
    TEXT = (
        "text-of-unknown-origin",
        "the text that it learned from ({told}) was written by no model of these people's text",
    )
    FILTERED = (
        "filtered-against-private",
        "nobody of this store is in the private data ({told}) that text it learned from was "
        "filtered against",
    )
    OTHERS = (
        "base-of-other-people",
        "nobody whose text the base model learned from ({told}) is in the store that it was "
        "trained on next (for those people themselves nothing is claimed)",
    )
    EVALUATION = (
        "evaluation-on-public-data",
        "the evaluation data ({told}) that may have steered its training holds nothing of these "
        "people",
    )
    SILOS = ("silos-per-subject", "nobody has items in more than {told} silos")
    SILO_LEDGERS = (
        "silo-ledgers-missing",
        "nothing was released of the people of the silos whose ledgers are not here ({told}) "
        "before they joined",
    )
    CHOSEN = ("chosen-among-runs", "no model here was chosen among {told}")


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Condition:
    """Something that has to be true for a claim to hold, and that no software here can check.

    Args:
        kind: of it.
        told: what it is about: names of commands, of a model; public.
    """

    kind: ConditionKind
    told: str = ""

    @property
    def in_words(self) -> str:
        """A clause that follows "provided that"."""
        return self.kind.clause.format(told=self.told)

    @property
    def in_words_of_a_store(self) -> str:
        """The same of everything that was charged in a store."""
        return self.kind.of_store.format(told=self.told)


COPIED = Condition(
    kind=ConditionKind.COPY,
    told="its file was copied, put back or changed by something else than userdp",
)


def about(kind: ConditionKind, names: Iterable[str]) -> tuple[Condition, ...]:
    """One condition about all that is named; none where nothing is."""
    told = ", ".join(sorted(set(names)))
    return (Condition(kind=kind, told=told),) if told else ()


def of_plan(plan: Plan | None) -> tuple[Condition, ...]:
    """What a plan itself says of where its constants come from."""
    origins = {} if plan is None else plan.origins
    looks = [one.what for one in origins.values() if isinstance(one, NonPrivateLook)]
    return about(ConditionKind.PLAN, looks)


def among_runs(runs: int, looks: Iterable[str]) -> Condition:
    """That a run was not chosen among those over the same people; 0 ``runs``: not known how many.

    Args:
        runs: how many there are, itself included.
        looks: what showed exact numbers of their models; none where only releases could choose.
    """
    told = ", ".join(sorted(looks))
    by = f"by exact numbers ({told})" if told else "by what they released"
    unknown = "other runs over the same people, of which only their store knows, and it is not here"
    told = f"{runs} runs over the same people {by}" if runs else unknown
    return Condition(kind=ConditionKind.CHOSEN, told=told)


def looks_in_one(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """The same, with all exact numbers that were shown in one condition."""
    kept = set(conditions)
    looks = {one for one in kept if one.kind is ConditionKind.LOOKS}
    names = [name for one in looks for name in one.told.split(", ")]
    return tuple(sorted(kept - looks | set(about(ConditionKind.LOOKS, names))))
