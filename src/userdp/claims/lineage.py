"""What a model descends from: everything that was paid for it, and what nobody paid for.

A model is a function of its own training, of the DP releases that its constants were chosen by, and
of all that the model it began from descends from in turn. Each of these is a `Part`, under the
random id that a ledger gave it, so that two ways to the same part count it once. What no price
covers is a `Condition`: something that has to be true for the claim to hold, said in its headline.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import Any

from userdp.claims.conditions import Condition
from userdp.claims.parts import Part, Steps, Unclaimed
from userdp.codec import decode, encode


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
