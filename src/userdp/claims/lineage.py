"""What a model descends from: everything that was paid for it, and what nobody paid for.

A model is a function of its own training, of the DP releases that its constants were chosen by, and
of all that the model it began from descends from in turn. Each of these is a `Part`, under the
random id that a ledger gave it, so that two ways to the same part count it once. What no price
covers is a `Condition`: something that has to be true for the claim to hold, said in its headline
by a sentence of ``claim_sentences.toml``. `userdp.claims.ledger_lineage` reads both from ledgers.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from userdp.core.codec import decode, encode
from userdp.core.vocabulary import MIXED, Guarantee, PrivacyUnit
from userdp.ledger.charged_parts import Part, PriceOfPlan, Unclaimed, recorded
from userdp.plans import Plan


@cache
def sentences() -> Mapping[str, Any]:
    """What is said of claims: ``claim_sentences.toml``."""
    return tomllib.loads(
        Path(__file__).with_name("claim_sentences.toml").read_text(encoding="utf-8")
    )


class ConditionKind(StrEnum):
    """What a claim may rest on that no price covers, by its name in JSON and in the sentences."""

    LOOKS = "exact-looks"
    BASE = "base-of-unknown-origin"
    MEMORY = "weights-changed-in-memory"
    ADAPTERS = "adapters-of-unknown-origin"
    PLAN = "plan-from-exact-numbers"
    COPY = "copied-ledger"
    TEXT = "text-of-unknown-origin"
    FILTERED = "filtered-against-private"
    EVALUATION = "evaluation-on-public-data"
    SILOS = "silos-per-subject"
    SILO_LEDGERS = "silo-ledgers-missing"
    CHOSEN = "chosen-among-runs"


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Condition:
    """Something that has to be true for a claim to hold, and that no software here can check.

    Args:
        kind: what has to be true.
        told: what the condition is about, such as names of commands or of a model; public.
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
    return about(ConditionKind.PLAN, [one.statistic for one in origins.values() if one.exact])


def looks_in_one(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """The same, with all exact numbers that were shown in one condition."""
    kept = set(conditions)
    looks = {one for one in kept if one.kind is ConditionKind.LOOKS}
    names = [name for one in looks for name in one.told.split(", ")]
    return tuple(sorted(kept - looks | set(about(ConditionKind.LOOKS, names))))


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """What a model descends from.

    Args:
        parts: each once, in the order in which they were charged.
        conditions: each once, in order.
    """

    parts: tuple[Part, ...] = ()
    conditions: tuple[Condition, ...] = ()

    @property
    def fixed(self) -> bool:
        """Whether the price was fixed before anything was seen: it is that of one part.

        The sum of prices that were chosen by what earlier ones released is no DP guarantee (Rogers
        et al. 2016, "Privacy Odometers and Filters"), and is told as what was spent so far.
        """
        return len(self.parts) < 2

    def __add__(self, other: Lineage) -> Lineage:
        """Both: a part that both descend from counts once."""
        parts = {part.id: part for part in (*self.parts, *other.parts)}
        conditions = sorted({*self.conditions, *other.conditions})
        return Lineage(parts=tuple(parts.values()), conditions=tuple(conditions))

    def guarantee(
        self, *, delta: float | None = None, price: PriceOfPlan | None = None
    ) -> Guarantee:
        """Basic composition (Dwork and Roth 2014, Theorem 3.16) of all parts: ε and δ add up.

        A sum over different adjacencies bounds neither: it is infinite.

        Args:
            delta: of the whole, shared evenly by the parts that have one; each part's own by
                default.
            price: of the steps of a plan.
        """
        deltas = sum(bool(part.plans) for part in self.parts)
        share = delta / deltas if delta and deltas else None
        parts = [
            part.guarantee(delta=share if part.plans else None, price=price) for part in self.parts
        ]
        if len(parts) == 1:
            return parts[0]
        summed = min(math.fsum(part.delta for part in parts), math.nextafter(1.0, 0.0))
        adjacencies = {part.adjacency for part in parts}
        samplings = {part.sampling for part in parts}
        # A subject is a user of several silos: what is priced per user is so for a subject too.
        units = {part.unit for part in parts} - {PrivacyUnit.USER} or {PrivacyUnit.USER}
        finite = all(math.isfinite(part.epsilon) for part in parts)
        if not finite or len(adjacencies) != 1 or len(units) != 1:
            return Unclaimed(id="").guarantee(delta=summed)
        return Guarantee(
            epsilon=math.fsum(part.epsilon for part in parts),
            delta=summed,
            unit=units.pop(),
            adjacency=adjacencies.pop(),
            sampling=samplings.pop() if len(samplings) == 1 else MIXED,
            accountant=" + ".join(sorted({part.accountant for part in parts})),
        )

    @property
    def plain(self) -> dict[str, Any]:
        """As plain values, for JSON; of a plan that only its own module reads, the price."""
        return dict(encode(replace(self, parts=tuple(map(recorded, self.parts)))))


def lineage_from(values: Any, *, what: str) -> Lineage:
    """The inverse of `Lineage.plain`; `UseError` if the values are none."""
    return decode(Lineage, values, what=what)


def of_parts(parts: Iterable[Part], *conditions: Condition) -> Lineage:
    """A lineage of parts that were charged one after another."""
    return Lineage() + Lineage(parts=tuple(parts), conditions=conditions)
