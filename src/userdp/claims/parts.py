"""What a claim is made of: parts, each with a price; and conditions, which no price covers.

Both are data, under names that ledgers and exports hold; ``words.toml`` has a sentence for each.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from userdp.accounting.filters import ACCOUNTANT as FILTER
from userdp.accounting.filters import RenyiFilter
from userdp.core.vocabulary import MIXED, NONE, Adjacency, Guarantee, PrivacyUnit
from userdp.plans import FixedGrid, Plan, Tuning
from userdp.plans.provenance import NonPrivateLook
from userdp.sampling import PoissonUsers

PriceOfPlan: TypeAlias = Callable[[Plan, float | None], Guarantee]
"""What all steps of a plan cost at a δ, or at the plan's own: the plan's own accountant says, or
another one that is asked for a second opinion."""


@cache
def sentences() -> Mapping[str, Any]:
    """What is said of claims: ``words.toml``."""
    return tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))


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
        told: str = sentences()["part"][self.kind]
        return told.format(part=self)

    @property
    def has_delta(self) -> bool:
        """Whether a δ may be chosen for it."""
        return isinstance(self, Steps | Choice)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans whose prices add up to its own; none where it is not made of such."""
        match self:
            case Steps(plan=plan):
                return (plan,)
            case Choice(tuning=FixedGrid(plans=plans)):
                return plans
        return ()

    def guarantee(self, *, delta: float | None = None, price: PriceOfPlan = own_price) -> Guarantee:
        """Its claim, at its own δ by default; ε is infinite where it has none."""
        match self:
            case Steps(plan=plan, charges=charges):
                once = price(plan, None if delta is None else delta / charges)
                in_all = min(once.delta * charges, math.nextafter(1.0, 0.0))
                return replace(once, epsilon=once.epsilon * charges, delta=in_all)
            case Choice(tuning=FixedGrid() as grid):
                return grid.guarantee(delta=delta, price=price)
            case Choice(tuning=declared):
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

    @property
    def again(self) -> str:
        """That in words, where it was more than once."""
        return f", charged {self.charges} times" if self.further else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice(Part):
    """The best of several runs, chosen by DP scores: all that was tried is in its price."""

    kind: ClassVar[str] = "choice"

    tuning: Tuning


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
        why: in words, as a clause: "people's text was trained on without privacy".
    """

    kind: ClassVar[str] = "unclaimed"

    why: str


WITHOUT_PRIVACY = "people's text was trained on without privacy"


class ConditionKind(StrEnum):
    """What a claim may rest on that no price covers, by its name in JSON and in ``words.toml``."""

    LOOKS = "exact-looks"
    BASE = "base-of-unknown-origin"
    MEMORY = "weights-changed-in-memory"
    ADAPTERS = "adapters-of-unknown-origin"
    PLAN = "plan-from-exact-numbers"
    COPY = "copied-ledger"
    TEXT = "text-of-unknown-origin"
    FILTERED = "filtered-against-private"
    OTHERS = "base-of-other-people"
    EVALUATION = "evaluation-on-public-data"
    SILOS = "silos-per-subject"
    SILO_LEDGERS = "silo-ledgers-missing"
    CHOSEN = "chosen-among-runs"


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
        told: str = sentences()["condition"][self.kind]
        return told.format(told=self.told)


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
