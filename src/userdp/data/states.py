"""The states of a store: what it held after each `prepare`, append and erasure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class StateKind(StrEnum):
    """How a state came about."""

    PREPARED = "prepared"
    APPENDED = "appended"
    ERASED = "erased"


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """One state of a store.

    An id is random and says nothing about the data. That of a prepared or appended state is the
    store's ``store_id`` from then on, and public; that of an erasure stays with the operator, since
    whether somebody asked to be forgotten is a fact about people.

    Args:
        id: 32 hex digits.
        kind: how it came about.
        segments: of the store from then on. Appending adds segments and compaction keeps their
            numbers, so that the first segment with text of a user tells when they joined.
    """

    id: str
    kind: StateKind
    segments: int


def states_in(raw: Mapping[str, Any]) -> Any:
    """The states in meta.json, as plain values.

    A store of before states were written has one: all its people count as there from the start,
    which adds up more for some of them than they were charged, and never less.
    """
    if "states" not in raw:
        kind = StateKind.PREPARED.value
        return [{"id": raw["store_id"], "kind": kind, "segments": raw["segments"]}]
    return raw["states"]


def joined_at(states: tuple[State, ...], first_segment: int) -> int:
    """The number of the state (from 0) in which a user joined whose first text lies there.

    >>> one = State(id="a", kind=StateKind.PREPARED, segments=2)
    >>> two = State(id="b", kind=StateKind.APPENDED, segments=3)
    >>> [joined_at((one, two), segment) for segment in (0, 1, 2)]
    [0, 0, 1]
    """
    return next(number for number, state in enumerate(states) if first_segment < state.segments)
