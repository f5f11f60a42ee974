"""What a claim is made of: parts, each with a price; and conditions, which no price covers.

How each of them is said stands here beside it, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

from userdp.accounting.filters import ACCOUNTANT as FILTER
from userdp.accounting.filters import RenyiFilter
from userdp.core.vocabulary import MIXED, NONE, Adjacency, Guarantee, PrivacyUnit
from userdp.plans import Plan, Series, Tuning
from userdp.plans.origin import NonPrivateLook
from userdp.sampling import PoissonUsers


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One thing that was released of people's text.

    Args:
        id: random, from the ledger that it was charged in.
    """

    kind: ClassVar[str]

    id: str

    @property
    def in_words(self) -> str:
        """What it is."""
        raise NotImplementedError

    @property
    def has_delta(self) -> bool:
        """Whether a δ may be chosen for it."""
        return False

    def guarantee(self, *, delta: float | None = None) -> Guarantee:
        """Its claim, at its own δ by default; ε is infinite where it has none."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps(Part):
    """The noisy steps of one run: all that its plan allows, whether or not they ran.

    When a run stopped may have been chosen by what its steps released, and ε of a number of steps
    that the outputs chose bounds nothing.

    Args:
        plan: of the run.
        further: ids of further charges of the whole plan: of a run that went on from a copy, or
            from a folder that could not be told from one.
    """

    kind: ClassVar[str] = "run"

    plan: Plan
    further: tuple[str, ...] = ()

    @property
    def charges(self) -> int:
        """How often the whole plan was charged."""
        return 1 + len(self.further)

    @property
    def in_words(self) -> str:
        times = f", charged {self.charges} times" if self.charges > 1 else ""
        return f"training ({self.plan.algorithm}, {self.plan.steps} steps{times})"

    @property
    def has_delta(self) -> bool:
        return True

    def guarantee(self, *, delta: float | None = None) -> Guarantee:
        share = None if delta is None else delta / self.charges
        return times(self.plan.guarantee(delta=share), self.charges)


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared(Part):
    """Several things together that state one price, declared before the first of them."""

    @property
    def declared(self) -> Tuning | Series:
        """What states the price."""
        raise NotImplementedError

    @property
    def in_words(self) -> str:
        return self.declared.in_words

    @property
    def has_delta(self) -> bool:
        return True

    def guarantee(self, *, delta: float | None = None) -> Guarantee:
        return self.declared.guarantee(delta=delta)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice(Declared):
    """The best of several runs, chosen by DP scores: all that was tried is in its price.

    Args:
        tuning: how it was chosen.
    """

    kind: ClassVar[str] = "choice"

    tuning: Tuning

    @property
    def declared(self) -> Tuning:
        return self.tuning


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

    @property
    def in_words(self) -> str:
        return f"DP answer: {self.name}"

    def guarantee(self, *, delta: float | None = None) -> Guarantee:
        return Guarantee(
            epsilon=self.pure_epsilon,
            delta=0.0,
            unit=PrivacyUnit.USER,
            adjacency=Adjacency.ADD_OR_REMOVE,
            sampling=PoissonUsers.kind,  # every user is asked: q = 1
            accountant="pure",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound(Part):
    """A guarantee that was computed elsewhere, such as that of a federation's plan.

    Args:
        what: it is of, in words.
        bound: the guarantee; ε is finite.
    """

    kind: ClassVar[str] = "bound"

    what: str
    bound: Guarantee

    @property
    def in_words(self) -> str:
        return self.what

    def guarantee(self, *, delta: float | None = None) -> Guarantee:
        return self.bound


@dataclass(frozen=True, kw_only=True, slots=True)
class OfSeries(Declared):
    """All runs and answers of a declared series, whether or not they took place.

    Args:
        series: what was declared before the first of them.
    """

    kind: ClassVar[str] = "series"

    series: Series

    @property
    def declared(self) -> Series:
        return self.series


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

    @property
    def in_words(self) -> str:
        return (
            "a budget that was fixed before its first use, all of it (Rényi filter of order "
            f"{self.filter.order:g})"
        )

    def guarantee(self, *, delta: float | None = None) -> Guarantee:
        return Guarantee(
            epsilon=self.filter.epsilon,
            delta=self.filter.delta,
            unit=PrivacyUnit.USER,
            adjacency=self.adjacency,
            sampling=MIXED,
            accountant=FILTER,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Unclaimed(Part):
    """Something that has no ε: of a model that descends from it nothing is claimed.

    Args:
        why: in words.
    """

    kind: ClassVar[str] = "unclaimed"

    why: str

    @property
    def in_words(self) -> str:
        return self.why

    def guarantee(self, *, delta: float | None = None) -> Guarantee:
        return Guarantee(
            epsilon=math.inf,
            delta=delta or 0.0,
            unit=PrivacyUnit.USER,
            adjacency=Adjacency.ADD_OR_REMOVE,
            sampling=NONE,
            accountant="none",
        )


def times(guarantee: Guarantee, charges: int) -> Guarantee:
    """Basic composition of a claim with itself."""
    return replace(
        guarantee,
        epsilon=guarantee.epsilon * charges,
        delta=min(guarantee.delta * charges, math.nextafter(1.0, 0.0)),
    )


class ConditionKind(StrEnum):
    """What a claim may rest on that no price covers; by its value it is known in JSON."""

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


_WORDS = {
    ConditionKind.LOOKS: "nothing of its training was chosen by the exact numbers that {told} "
    "showed its operator before",
    ConditionKind.BASE: "the model that it began from ({told}) had learned nothing of these people",
    ConditionKind.MEMORY: "the weights in memory that it began from, which are not those in the "
    "files of {told}, had learned nothing of these people",
    ConditionKind.ADAPTERS: "the adapters that it began with ({told}) had learned nothing of these "
    "people",
    ConditionKind.PLAN: "what its plan was chosen from ({told}) says nothing of these people",
    ConditionKind.COPY: "no other copy of the store or of its ledger was charged, and no charge "
    "was taken back with it ({told})",
    ConditionKind.TEXT: "the text that it learned from ({told}) was written by no model of these "
    "people's text",
    ConditionKind.FILTERED: "nobody of this store is in the private data ({told}) that text it "
    "learned from was filtered against",
    ConditionKind.OTHERS: "nobody whose text the base model learned from ({told}) is in the store "
    "that it was trained on next (for those people themselves nothing is claimed)",
    ConditionKind.EVALUATION: "the evaluation data ({told}) that may have steered its training "
    "holds nothing of these people",
    ConditionKind.SILOS: "nobody has items in more than {told} silos",
    ConditionKind.SILO_LEDGERS: "nothing was released of the people of the silos whose ledgers are "
    "not here ({told}) before they joined",
    ConditionKind.CHOSEN: "no model here was chosen among {told}",
}
_WORDS_OF_A_STORE = {
    ConditionKind.LOOKS: "nothing that was charged here was chosen by the exact numbers that "
    "{told} showed its operator before",
    ConditionKind.PLAN: "what plans were chosen from ({told}) says nothing of these people",
}
"""Where a store's total says it otherwise than a model's claim."""


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
        return _WORDS[self.kind].format(told=self.told)

    @property
    def in_words_of_a_store(self) -> str:
        """The same of everything that was charged in a store."""
        return _WORDS_OF_A_STORE.get(self.kind, _WORDS[self.kind]).format(told=self.told)


COPIED = Condition(
    kind=ConditionKind.COPY,
    told="its file was copied, put back or changed by something else than userdp",
)


def looked_at(looks: Iterable[str]) -> tuple[Condition, ...]:
    """That exact numbers which these commands showed did not choose anything; none without any."""
    told = ", ".join(sorted(looks))
    return (Condition(kind=ConditionKind.LOOKS, told=told),) if told else ()


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


def of_plan(plan: Plan | None) -> tuple[Condition, ...]:
    """What a plan itself says of where its constants come from."""
    origins = {} if plan is None else plan.origins
    looks = {one.what for one in origins.values() if isinstance(one, NonPrivateLook)}
    told = ", ".join(sorted(looks))
    return (Condition(kind=ConditionKind.PLAN, told=told),) if told else ()


def looks_in_one(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """The same, with all exact numbers that were shown in one condition."""
    conditions = list(conditions)
    looks = [one for one in conditions if one.kind is ConditionKind.LOOKS]
    names = {name for one in looks for name in one.told.split(", ")}
    return tuple(sorted({*(one for one in conditions if one not in looks), *looked_at(names)}))
