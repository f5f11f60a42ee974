"""A record, and the count of what happened to each one (invariant 10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from userdp.errors import FailureError


class Drop(StrEnum):
    """Why a record is not in the store."""

    BLANK_LINE = "blank line"
    INVALID_UTF8 = "not valid UTF-8"
    INVALID_JSON = "not valid JSON"
    NOT_AN_OBJECT = "not a JSON object"
    NO_USER_FIELD = "no user field"
    NO_USER = "empty user"
    USER_NOT_TEXT = "user neither text nor whole number"
    NO_TEXT_FIELD = "no text field"
    NOT_TEXT = "text is not a string"
    EMPTY_TEXT = "empty text"
    NO_DATE = "no date, or one that cannot be read"
    UNREADABLE = "unreadable record"
    FORWARDED = "forwarded mail"
    REPEATED_NGRAM = "a 20-gram repeats within the record"
    NO_RECEIVER = "mail without a receiver"
    ATTACHED = "message attached to a mail"
    MERGE = "merge commit"
    NO_DOMAIN = "URL without a registered domain"
    NO_ANSWER = "conversation without an assistant's turn"
    BAD_TEMPLATE = "conversation that the chat template refuses"
    SINGLETON = "only record of its user"
    OVER_BOUND = "over the bound of one of its owners"
    BOTH_SIDES = "owners on both sides of the held-out-users split"
    UNREADABLE_MODULE = "unreadable module"
    OVER_MAX_USERS = "module left unread, over --max-users"
    REPEATED = "public record that repeats on the other side of the split"
    TOO_SHORT = "fewer than 2 tokens"
    BAD_TOKENS = "tokens outside the vocabulary, or labels of other tokens"


class Record(NamedTuple):
    """One piece of text of one user, before tokenizing.

    Args:
        user: the user's id as UTF-8, not empty.
        text: UTF-8, not blank.
        order: where the record stands in the source; orders the records of one user.
        held_out: the source's own split says that this record is not trained on.
        pieces: for conversations: (end, kind) of consecutive pieces of the text, ``end`` in
            characters, ``kind`` the sum of `TARGET` (the loss counts it) and `MARKUP` (special
            tokens in it are such; elsewhere they are plain text). None: all is target.
        owners: all users that the record belongs to, ``user`` among them; empty: ``user`` alone.
        unusable: why the record cannot be stored; only in sources that name several owners, where
            its place in the ownership graph counts whatever its text is (`ownership`).
    """

    user: bytes
    text: bytes
    order: int
    held_out: bool = False
    pieces: tuple[tuple[int, int], ...] | None = None
    owners: tuple[bytes, ...] = ()
    unusable: Drop | None = None


TARGET, MARKUP = 1, 2


class ExampleDrop(StrEnum):
    """Why a piece of a stored record is not in the store."""

    TOO_SHORT = "fewer than 2 tokens left at a record's end"
    NO_TARGET = "no token that the loss counts"
    ONE_PER_RECORD = "beyond a record's first example, in a store of several owners"


_MOST_WRITERS = 1000


class Tally:
    """Books of one `prepare`: what was read, stored and dropped.

    >>> tally = Tally()
    >>> tally.read(3); tally.drop(Drop.EMPTY_TEXT); tally.store(2)
    >>> tally.balance(); dict(tally.drops)
    {'empty text': 1}
    """

    def __init__(self) -> None:
        self.records_read = 0
        self.records_stored = 0
        self.drops: Counter[str] = Counter()
        self.example_drops: Counter[str] = Counter()
        self.written_by: list[str] = []

    def wrote(self, model: str) -> None:
        """Note a model that wrote one of the records; see `userdp.data.sources.provenance`."""
        if model not in self.written_by and len(self.written_by) < _MOST_WRITERS:
            self.written_by.append(model)

    def read(self, records: int = 1) -> None:
        """Count records read."""
        self.records_read += records

    def drop(self, reason: Drop, records: int = 1) -> None:
        """Count records dropped for ``reason``; a reason of none is not named."""
        if records:
            self.drops[str(reason)] += records

    def drop_examples(self, reason: ExampleDrop, examples: int = 1) -> None:
        """Count examples dropped from records that are stored."""
        if examples:
            self.example_drops[str(reason)] += examples

    def store(self, records: int = 1) -> None:
        """Count records stored."""
        self.records_stored += records

    def facts(self) -> dict[str, Any]:
        """All counts, as plain values."""
        return {
            "records_read": self.records_read,
            "records_stored": self.records_stored,
            "drops": dict(self.drops),
            "example_drops": dict(self.example_drops),
            "written_by": list(self.written_by),
        }

    def add(self, facts: Mapping[str, Any]) -> None:
        """Add what another process counted, or this one before it was killed: its `facts`.

        >>> whole, part = Tally(), Tally()
        >>> part.read(2); part.drop(Drop.NO_USER); whole.add(part.facts()); whole.add(part.facts())
        >>> whole.records_read, dict(whole.drops)
        (4, {'empty user': 2})
        """
        self.records_read += facts["records_read"]
        self.records_stored += facts["records_stored"]
        self.drops.update(facts["drops"])
        self.example_drops.update(facts["example_drops"])
        for model in facts["written_by"]:
            self.wrote(model)

    def balance(self) -> None:
        """Every record read is stored or dropped with a reason, else `FailureError`."""
        dropped = sum(self.drops.values())
        if self.records_read != self.records_stored + dropped:
            raise FailureError(
                f"the books do not balance: {self.records_read} records read, "
                f"{self.records_stored} stored and {dropped} dropped; a record was lost without "
                "a reason, so the store was not written",
                hint="this is a defect in userdp or in a source: please report it",
            )
