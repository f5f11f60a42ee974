"""Where a constant of a plan comes from; what was not declared is part of the plan and its digest.

A constant without an origin is *declared*: the operator's own, the same on neighbouring data sets,
or one of public data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class Provenance(StrEnum):
    """Whose numbers were looked at, and so what they cost.

    ``DECLARED``: nobody's, the operator's own constant. ``PUBLIC``: public users'. ``HELD_OUT``:
    private users who are never trained on and whom the claim does not cover. ``DP_RELEASE``:
    private users, under DP; a line of the store's ledger. ``NON_PRIVATE``: the private users
    themselves, exactly: no claim covers what is chosen by it.
    """

    DECLARED = "declared"
    PUBLIC = "public"
    HELD_OUT = "held-out-users"
    DP_RELEASE = "dp-release"
    NON_PRIVATE = "non-private"


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """A number that a plan was chosen by, and where it comes from.

    Args:
        name: "population", "population examples", "median examples per user", "gradient norms",
            "l2 clip norm" or "delta".
        value: the number; None for the norms, which are several.
        origin: where it comes from.
        query_id: the ledger's line, for a DP release.
    """

    name: str
    value: float | None
    origin: Provenance
    query_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """An answer under DP, which may be published, and which a plan may rest on.

    Args:
        name: what was asked ("users", "examples", "median", …).
        value: the noisy answer; None where it is not one number, or a crash took it away.
        epsilon: what its line charges, (ε, 0)-DP per user; fixed before the answer was drawn.
        query_id: of its line in the store's ledger.
    """

    name: str
    value: int | None = None
    epsilon: float
    query_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerLine:
    """A DP release: a line of the store's ledger, which says what it cost.

    Args:
        what: the statistic, in words.
        line: its id in the ledger.
    """

    kind: ClassVar[str] = "ledger-line"

    what: str
    line: str

    @property
    def in_words(self) -> str:
        return f"DP releases in the store's ledger: {self.what}"


@dataclass(frozen=True, kw_only=True, slots=True)
class NonPrivateLook:
    """An exact number of people's text: nothing that was chosen by it is covered by the claim.

    Args:
        what: the statistic, in words.
        held_out: it was of held-out people, whom the claim of the training does not speak of.
    """

    kind: ClassVar[str] = "non-private-look"

    what: str
    held_out: bool = False

    @property
    def in_words(self) -> str:
        people = "statistics of held-out users" if self.held_out else "non-private statistics"
        return f"{people}: {self.what}"


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeFor:
    """What the norms were measured on that a plan was chosen by: it is no plan for anything else.

    Args:
        store: the random id of the store's ledger; None where the people were public ones.
        weights: the digest of the base model's weights; None for a new model's.
        adapters: the adapters, in words; None for all weights.
    """

    store: str | None = None
    weights: str | None = None
    adapters: str | None = None


Origin = LedgerLine | NonPrivateLook
Origins = Mapping[str, Origin]

_FIELDS = {
    "population examples": "population.examples",
    "median examples per user": "sampling.group_size",
    "gradient norms": "clip",
    "l2 clip norm": "clip.l2_norm",
}
"""What in a plan a constant of the planner decides, where the name says it not by itself."""


def origins_of(constants: Iterable[Constant]) -> dict[str, Origin]:
    """The origins of a plan's constants; those that are declared or public are not written."""
    origins: dict[str, Origin] = {}
    for one in constants:
        place = _FIELDS.get(one.name, one.name)
        if one.origin is Provenance.DP_RELEASE:
            origins[place] = LedgerLine(what=one.name, line=one.query_id or "unknown")
        elif one.origin in (Provenance.NON_PRIVATE, Provenance.HELD_OUT):
            held_out = one.origin is Provenance.HELD_OUT
            origins[place] = NonPrivateLook(what=one.name, held_out=held_out)
    return origins


def uncovered(origins: Origins) -> bool:
    """Whether the plan rests on an exact number of people's text."""
    return any(isinstance(origin, NonPrivateLook) for origin in origins.values())


def in_words(origins: Origins) -> str:
    """What a plan's constants were taken from, the least covered first."""
    groups: dict[str, list[str]] = {}
    named = (origins[name] for name in sorted(origins))  # the same before and after a file
    for origin in sorted(named, key=_severity):
        group, _, what = origin.in_words.partition(": ")
        if what not in groups.setdefault(group, []):
            groups[group].append(what)
    said = [f"{group}: {', '.join(what)}" for group, what in groups.items()]
    return "; ".join(said) or "declared constants and public statistics"


def _severity(origin: Origin) -> int:
    return 2 if isinstance(origin, LedgerLine) else int(origin.held_out)
