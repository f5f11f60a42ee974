"""Where a constant of a plan comes from, if it was not declared; part of the plan and its digest.

A constant without an origin is *declared*: the operator's own, the same on neighbouring data sets,
or one of public data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


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
