"""What was released of people's text, one thing at a time, each with a price of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from userdp.accounting.filters import ACCOUNTANT as FILTER
from userdp.accounting.filters import RenyiFilter
from userdp.plans import Plan, Series, Tuning
from userdp.sampling import PoissonUsers
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
