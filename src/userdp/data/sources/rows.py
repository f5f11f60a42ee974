"""Rows of tables (JSON Lines, CSV, Parquet, data sets), and what makes records of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from difflib import get_close_matches
from numbers import Integral
from typing import Any, Protocol

from userdp.core.errors import UseError
from userdp.data.records import Drop, Record
from userdp.data.sources.base import SourceOptions

Row = dict[str, Any]
GENERATED = "generated_by"
"""The field of a generated record that names the model that wrote it."""


class Parser(Protocol):
    """Makes a record of a row."""

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields that are looked at."""

    @property
    def required(self) -> tuple[tuple[str, ...], ...]:
        """Groups of fields; of each group, some row must have one."""

    def parse(self, row: Row) -> Record | Drop:
        """The record of a row, or why there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainParser:
    """A field for the user, one for the text, perhaps one for the date.

    Args:
        user: holds a string or a whole number, or a list of such: all owners.
        text: holds a string (or its bytes in UTF-8).
        date, held_out_from: see `SourceOptions`.
        user_of: makes the user of the field's value; None: the value itself.
    """

    user: str = "user"
    text: str = "text"
    date: str | None = None
    held_out_from: datetime | None = None
    user_of: Callable[[str], bytes | Drop] | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """User, text and date."""
        dated = () if self.date is None else (self.date,)
        return (self.user, self.text, *dated)

    @property
    def required(self) -> tuple[tuple[str, ...], ...]:
        """Each of them."""
        return tuple((name,) for name in self.fields)

    def parse(self, row: Row) -> Record | Drop:
        """The record of a row; or why there is none; see `Parser.parse`."""
        held_out: bool | Drop = False
        if self.held_out_from is not None and self.date is not None:
            held_out = is_from(row.get(self.date), self.held_out_from)
        owners = owners_of(row.get(self.user), self.user_of)
        return record_of_owners(owners, text_of(row.get(self.text)), held_out)


def record_of_owners(
    owners: tuple[bytes, ...] | Drop,
    text: bytes | Drop,
    held_out: bool | Drop = False,
    pieces: tuple[tuple[int, int], ...] | None = None,
) -> Record | Drop:
    """The record of these users, also an unusable one: it has its place in the graph of owners."""
    if isinstance(owners, Drop):
        return owners
    several = owners if len(owners) > 1 else ()
    if isinstance(text, Drop):
        return Record(owners[0], b"", owners=several, unusable=text)
    if isinstance(held_out, Drop):
        return Record(owners[0], b"", owners=several, unusable=held_out)
    return Record(owners[0], text, 0, held_out, pieces, several)


def record_of(user: Any, text: Any, held_out: bool | Drop = False) -> Record | Drop:
    """The record of one user's text, or why it is none."""
    return record_of_owners(owners_of(user), text_of(text), held_out)


def owners_of(
    value: Any, user_of: Callable[[str], bytes | Drop] | None = None
) -> tuple[bytes, ...] | Drop:
    """The users that a field's value names, each once, in its order."""
    owners: dict[bytes, None] = {}
    alone = [] if value is None else [value]
    for one in value if isinstance(value, list) else alone:
        user = _user(one, user_of)
        if isinstance(user, Drop):
            return user
        owners[user] = None
    return tuple(owners) or Drop.NO_USER_FIELD


def _user(value: Any, user_of: Callable[[str], bytes | Drop] | None) -> bytes | Drop:
    try:
        if isinstance(value, str):
            user = value.encode()
        elif isinstance(value, bytes):
            user = value
        elif isinstance(value, bool) or not isinstance(value, Integral):
            return Drop.USER_NOT_TEXT
        else:
            user = str(int(value)).encode()
        name = user.decode()
    except ValueError:  # half of a surrogate pair; more digits than Python writes
        return Drop.INVALID_UTF8
    if not name.strip():  # of the text: bytes have fewer white spaces
        return Drop.NO_USER
    return user if user_of is None else user_of(name)


def text_of(value: Any) -> bytes | Drop:
    """The text of a field's value as UTF-8."""
    if value is None:
        return Drop.NO_TEXT_FIELD
    try:
        if isinstance(value, str):
            return value.encode() if value and not value.isspace() else Drop.EMPTY_TEXT
        if isinstance(value, bytes):
            return value if value.decode().strip() else Drop.EMPTY_TEXT
    except UnicodeError:
        return Drop.INVALID_UTF8
    return Drop.NOT_TEXT


def is_from(value: Any, day: datetime) -> bool | Drop:
    """Whether a field's value is a date on or after ``day``; times without a zone are UTC."""
    moment: datetime
    try:
        if isinstance(value, bytes):
            value = value.decode()
        if isinstance(value, datetime):
            moment = value
        elif isinstance(value, date):
            moment = datetime(value.year, value.month, value.day)
        elif isinstance(value, str):
            moment = datetime.fromisoformat(value.strip().removesuffix(" UTC"))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            moment = datetime.fromtimestamp(value, UTC)
        else:
            return Drop.NO_DATE
    except (ValueError, OverflowError, OSError):
        return Drop.NO_DATE
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) >= day


def parse_day(text: str | None) -> datetime | None:
    """An ISO date of the command line; `UseError` if it is none."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UseError(
            f"held_out_from must be an ISO date, got {text!r}", hint="as 2018-01-01"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def plain_parser(options: SourceOptions) -> PlainParser:
    """The parser that the options ask for."""
    if (options.date is None) != (options.held_out_from is None):
        raise UseError(
            "--date and --held-out-from go together: the field that says when, and the first "
            "day that is held out",
            hint="give both --date and --held-out-from, or none",
        )
    return PlainParser(
        user=options.user,
        text=options.text,
        date=options.date,
        held_out_from=parse_day(options.held_out_from),
    )


def told(names: Iterable[str], wanted: Collection[str]) -> str:
    """Names of fields, for a message: those that look like one, or resemble what was asked for.

    A table without a header has somebody's record in its place, which no message quotes.

    >>> told(["user", "body", "Dear Ann"], ["text"])
    "'user', 'body', and others that do not look like names"
    """
    known = [str(name) for name in names]
    near = {one for word in wanted for one in get_close_matches(word, known, cutoff=0.8)}
    shown = [repr(name) for name in known if name.isidentifier() or name in near]
    if len(shown) < len(known):
        others = "and others that do not look like names"
        shown.append(others if shown else "none that looks like one")
    return ", ".join(shown) or "none"
