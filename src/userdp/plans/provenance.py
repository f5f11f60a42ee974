"""Where the constants of a plan come from: part of the plan and of its digest.

A constant without an origin is *declared*: chosen by the operator, and the same on neighbouring
data sets; or it comes from public data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Provenance(StrEnum):
    """Whose data a number was computed from, which decides its price.

    ``DECLARED``: nobody's: the operator's own constant. ``PUBLIC``: that of public users.
    ``HELD_OUT``: that of private users on whom nothing is trained, and whom the claim does not
    cover. ``DP_RELEASE``: that of private users, under DP; a line of the store's ledger.
    ``NON_PRIVATE``: that of private users, exactly: no claim covers a choice by such a number.
    """

    DECLARED = "declared"
    PUBLIC = "public"
    HELD_OUT = "held-out-users"
    DP_RELEASE = "dp-release"
    NON_PRIVATE = "non-private"


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """A number by which a plan was chosen, and where it comes from.

    Args:
        name: "population", "population examples", "median examples per user", "gradient norms",
            "l2 clip norm" or "delta".
        value: the number; None for the norms, which are several.
        origin: where it comes from.
        query_id: the ledger's line, for a DP release.
    """

    name: str
    value: float | None
    origin: Provenance = Provenance.DECLARED
    query_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """An answer under DP, which may be published, and on which a plan may rest.

    Args:
        name: of the statistic ("users", "examples", "median", …).
        value: the noisy answer; None where it is not one number, or a crash took it away.
        epsilon: its price, (ε, 0)-DP per user; fixed before the answer was drawn.
        query_id: of its line in the store's ledger.
    """

    name: str
    value: int | None = None
    epsilon: float
    query_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The statistic of people's text that a constant of a plan was taken from.

    Args:
        source: whose text it was, and whether the number is exact.
        statistic: in words.
        ledger_line: the id of a DP release in the store's ledger, which says its price.
    """

    source: Provenance
    statistic: str
    ledger_line: str | None = None

    @property
    def exact(self) -> bool:
        """Whether it is an exact number: the claim covers no choice that was made by it."""
        return self.source is not Provenance.DP_RELEASE


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeFor:
    """The store and the model whose gradient norms a plan was chosen by: it is for no others.

    Args:
        store: the random id of the store's ledger; None where the people were public.
        weights: the digest of the base model's weights; None for a new model's.
        adapters: the adapters, in words; None for all weights.
    """

    store: str | None = None
    weights: str | None = None
    adapters: str | None = None


Origins = Mapping[str, Origin]

_SOURCES = {
    Provenance.NON_PRIVATE: "non-private statistics",
    Provenance.HELD_OUT: "statistics of held-out users",
    Provenance.DP_RELEASE: "DP releases in the store's ledger",
}
"""The sources of statistics of people's text, in words, the least covered first."""

_FIELDS = {
    "population examples": "population.examples",
    "median examples per user": "sampling.group_size",
    "gradient norms": "clip",
    "l2 clip norm": "clip.l2_norm",
}
"""The field of a plan that a constant of the planner decides, where it has another name."""


def origins_of(constants: Iterable[Constant]) -> dict[str, Origin]:
    """The origins of a plan's constants, by field; declared and public constants have none."""
    return {
        _FIELDS.get(one.name, one.name): Origin(
            source=one.origin, statistic=one.name, ledger_line=one.query_id
        )
        for one in constants
        if one.origin in _SOURCES
    }


def uncovered(origins: Origins) -> bool:
    """Whether the plan rests on an exact number of people's text."""
    return any(origin.exact for origin in origins.values())


def in_words(origins: Origins) -> str:
    """The statistics from which a plan's constants were taken, the least covered first."""
    said = []
    for source, words in _SOURCES.items():
        # In one order, before and after a file; each statistic once.
        taken = [
            origins[name].statistic for name in sorted(origins) if origins[name].source is source
        ]
        if taken:
            said.append(f"{words}: {', '.join(dict.fromkeys(taken))}")
    return "; ".join(said) or "declared constants and public statistics"
