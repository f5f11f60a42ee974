"""Rows of tables (JSON Lines, CSV, Parquet, data sets), and what makes records of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from userdp.data.progress import Progress
from userdp.data.records import Drop, Record
from userdp.data.sources.base import SourceOptions
from userdp.errors import UseError

Row = dict[str, Any]


class Rows(Protocol):
    """A reader of rows."""

    @property
    def size(self) -> int | None: ...

    def rows(self, progress: Progress, fields: tuple[str, ...]) -> Iterator[Row | Drop]:
        """Each row as field to value (of which ``fields`` matter), or why it is none."""

    def facts(self) -> dict[str, Any]:
        """What the store should say of it."""


@runtime_checkable
class FileRows(Rows, Protocol):
    """A reader of files, whose rows depend on the files alone."""

    @property
    def paths(self) -> tuple[Path, ...]: ...


class Block(NamedTuple):
    """Some rows of a reader that can give them as columns.

    Args:
        batch: the columns that matter; None where rows must be read singly.
        rows: the same rows, as `Rows.rows` yields them.
    """

    batch: pa.RecordBatch | None
    rows: Callable[[], Iterable[Row | Drop]]


@runtime_checkable
class BlockRows(Rows, Protocol):
    """A reader that gives rows in blocks too."""

    def blocks(self, progress: Progress, fields: tuple[str, ...]) -> Iterator[Block]:
        """The rows of `Rows.rows`, in their order."""


class Parser(Protocol):
    """Makes a record of a row."""

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields that are looked at."""

    @property
    def required(self) -> tuple[tuple[str, ...], ...]:
        """Groups of fields; of each group, some row must have one."""

    @property
    def loss_mask(self) -> bool: ...
    @property
    def several_owners(self) -> bool: ...

    def record(self, row: Row, order: int) -> Record | Drop:
        """The record of a row, or why it is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainParser:
    """A field for the user, one for the text, perhaps one for the date.

    Args:
        user_field: holds a string or a whole number, or a list of such: all owners.
        text_field: holds a string (or its bytes in UTF-8).
        date_field, held_out_from: see `SourceOptions`.
        user_of: makes the user of the field's value; None: the value itself.
    """

    user_field: str = "user"
    text_field: str = "text"
    date_field: str | None = None
    held_out_from: datetime | None = None
    user_of: Callable[[str], bytes | Drop] | None = None
    loss_mask: bool = field(default=False, init=False)
    several_owners: bool = field(default=True, init=False)

    @property
    def fields(self) -> tuple[str, ...]:
        """User, text and date."""
        dated = () if self.date_field is None else (self.date_field,)
        return (self.user_field, self.text_field, *dated)

    @property
    def required(self) -> tuple[tuple[str, ...], ...]:
        """Each of them."""
        return tuple((name,) for name in self.fields)

    def record(self, row: Row, order: int) -> Record | Drop:
        """The record of a row; one of several owners whose text is unusable keeps its place."""
        owners = owners_of(row.get(self.user_field), self.user_of)
        text = text_of(row.get(self.text_field))
        held_out: bool | Drop = False
        if self.held_out_from is not None and self.date_field is not None:
            held_out = is_from(row.get(self.date_field), self.held_out_from)
        if isinstance(owners, Drop):
            return owners
        several = owners if len(owners) > 1 else ()
        for problem in (text, held_out):
            if isinstance(problem, Drop):
                if not several:
                    return problem
                return Record(owners[0], b"", order, owners=several, unusable=problem)
        assert isinstance(text, bytes)
        assert isinstance(held_out, bool)
        return Record(owners[0], text, order, held_out, owners=several)


def owners_of(
    value: Any, user_of: Callable[[str], bytes | Drop] | None = None
) -> tuple[bytes, ...] | Drop:
    """The users that a field's value names, each once, in its order."""
    if value is None or (isinstance(value, list) and not value):
        return Drop.NO_USER_FIELD
    owners: dict[bytes, None] = {}
    for one in value if isinstance(value, list) else (value,):
        user = _user(one)
        if user_of is not None and isinstance(user, bytes):
            user = user_of(user.decode())
        if isinstance(user, Drop):
            return user
        owners[user] = None
    return tuple(owners)


def _user(value: Any) -> bytes | Drop:
    if isinstance(value, bool) or not isinstance(value, str | int | bytes):
        return Drop.USER_NOT_TEXT
    try:
        user = value if isinstance(value, bytes) else str(value).encode()
        user.decode()
    except (UnicodeError, ValueError):  # half of a surrogate pair; digits beyond what int takes
        return Drop.INVALID_UTF8
    return user if user.strip() else Drop.NO_USER


def text_of(value: Any) -> bytes | Drop:
    """The text of a field's value as UTF-8."""
    if value is None:
        return Drop.NO_TEXT_FIELD
    if isinstance(value, bytes):
        try:
            return value if value.decode().strip() else Drop.EMPTY_TEXT
        except UnicodeDecodeError:
            return Drop.INVALID_UTF8
    if not isinstance(value, str):
        return Drop.NOT_TEXT
    if not value.strip():
        return Drop.EMPTY_TEXT
    try:
        return value.encode()
    except UnicodeEncodeError:
        return Drop.INVALID_UTF8


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
    if (options.date_field is None) != (options.held_out_from is None):
        raise UseError(
            "date_field and held_out_from go together: the field that says when, and the first "
            "day that is held out",
            hint="give both --date-field and --held-out-from, or none",
        )
    return PlainParser(
        user_field=options.user_field,
        text_field=options.text_field,
        date_field=options.date_field,
        held_out_from=parse_day(options.held_out_from),
    )
