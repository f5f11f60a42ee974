"""What a model descends from: everything that was paid for it, and what nobody paid for.

A model is a function of its own training, of the DP releases that its constants were chosen by, and
of all that the model it began from descends from in turn. Each of these is a `Part`, under the
random id that a ledger gave it, so that two ways to the same part count it once. What no price
covers is a `Condition`: something that has to be true for the claim to hold, said in its headline.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from userdp.accounting.filters import ACCOUNTANT as FILTER
from userdp.accounting.filters import RenyiFilter
from userdp.codec import decode, encode
from userdp.plans import Plan, Series, Tuning
from userdp.sampling import poisson
from userdp.vocabulary import MIXED, NONE, Adjacency, Guarantee, PrivacyUnit


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
class Choice(Part):
    """The best of several runs, chosen by DP scores: all that was tried is in its price.

    Args:
        tuning: how it was chosen.
    """

    kind: ClassVar[str] = "choice"

    tuning: Tuning

    @property
    def in_words(self) -> str:
        return self.tuning.in_words

    @property
    def has_delta(self) -> bool:
        return True

    def guarantee(self, *, delta: float | None = None) -> Guarantee:
        return self.tuning.guarantee(delta=delta)


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
            sampling=poisson(PrivacyUnit.USER).kind,  # every user is asked: q = 1
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
class OfSeries(Part):
    """All runs and answers of a declared series, whether or not they took place.

    Args:
        series: what was declared before the first of them.
    """

    kind: ClassVar[str] = "series"

    series: Series

    @property
    def in_words(self) -> str:
        return self.series.in_words

    @property
    def has_delta(self) -> bool:
        return True

    def guarantee(self, *, delta: float | None = None) -> Guarantee:
        return self.series.guarantee(delta=delta)


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
    PLAN = "plan-from-exact-numbers"
    COPY = "copied-ledger"
    TEXT = "text-of-unknown-origin"
    FILTERED = "filtered-against-private"
    OTHERS = "base-of-other-people"
    EVALUATION = "evaluation-on-public-data"
    SILOS = "silos-per-subject"
    SILO_LEDGERS = "silo-ledgers-missing"


_WORDS = {
    ConditionKind.LOOKS: "nothing of its training was chosen by the exact numbers that {told} "
    "showed its operator before",
    ConditionKind.BASE: "the model that it began from ({told}) had learned nothing of these people",
    ConditionKind.PLAN: "what its plan was chosen from ({told}) says nothing of these people",
    ConditionKind.COPY: "no other copy of the store or of its ledger was charged ({told})",
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
}


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Apart:
    """A part that was declared to be of other people than those of one ledger.

    Args:
        part: what it is.
        ledger: the id of that ledger; nothing was said of the people of any other.
    """

    part: Part
    ledger: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """What a model descends from.

    Args:
        parts: each once, in the order in which they were charged.
        conditions: each once.
        within: the id of the one ledger that all parts were charged in, if a total that they stay
            within was fixed there before the first of them; else empty.
        apart: what it descends from besides, that was declared to be of other people.
    """

    parts: tuple[Part, ...] = ()
    conditions: tuple[Condition, ...] = ()
    within: str = ""
    apart: tuple[Apart, ...] = ()

    @property
    def fixed(self) -> bool:
        """Whether prices, or a total, were fixed before the first of several parts was seen.

        The sum of prices that were chosen by what earlier ones released is no DP guarantee (Rogers
        et al. 2016, "Privacy Odometers and Filters"), and is told as what was spent so far.
        """
        return len(self.parts) < 2 or self.within != ""

    def __add__(self, other: Lineage) -> Lineage:
        """Both: a part that both descend from counts once, in its greater price."""
        parts = {part.id: part for part in self.parts}
        for part in other.parts:
            known = parts.get(part.id)
            parts[part.id] = part if known is None else _dearer(known, part)
        totals = {one.within for one in (self, other) if one.parts}
        return Lineage(
            parts=tuple(parts.values()),
            conditions=tuple(sorted({*self.conditions, *other.conditions})),
            within=next(iter(totals)) if len(totals) == 1 else "",
            apart=tuple(
                {
                    (one.part.id, one.ledger): one
                    for one in (*self.apart, *other.apart)
                    if one.part.id not in parts
                }.values()
            ),
        )

    def among(self, ledger: str, known: Container[str]) -> Lineage:
        """This lineage as it is for the people of a ledger.

        What was declared to be of other people than those of *another* ledger may well be of
        these; and what this ledger itself charged is of these, whatever was declared.

        Args:
            ledger: its id.
            known: the ids of what was charged in it.
        """
        ours = [one for one in self.apart if one.ledger != ledger or one.part.id in known]
        others = tuple(one for one in self.apart if one not in ours)
        returned = Lineage(parts=tuple({one.part.id: one.part for one in ours}.values()))
        return replace(self, apart=others) + returned

    @property
    def plain(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return dict(encode(self))


def lineage_from(values: Any, *, what: str) -> Lineage:
    """The inverse of `Lineage.plain`; `UseError` if the values are none."""
    return decode(Lineage, values, what=what)


def of_parts(parts: Iterable[Part], *conditions: Condition, within: str = "") -> Lineage:
    """A lineage of parts that were charged one after another."""
    whole = Lineage(conditions=tuple(sorted(set(conditions))))
    for part in parts:
        whole += Lineage(parts=(part,), within=within)
    return whole


def _dearer(one: Part, other: Part) -> Part:
    """Of two records of one part: all that either charged for it; or the one that has no ε."""
    if isinstance(one, Unclaimed) or isinstance(other, Unclaimed):
        return one if isinstance(one, Unclaimed) else other
    if isinstance(one, Steps) and isinstance(other, Steps):
        return replace(one, further=tuple(dict.fromkeys((*one.further, *other.further))))
    return one
