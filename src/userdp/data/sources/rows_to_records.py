"""Tables as sources, and the one way from a row, or from anything else, to a record or a drop."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from difflib import get_close_matches
from itertools import islice
from numbers import Integral
from typing import Any

from userdp.core.errors import UseError
from userdp.core.stages import Progress
from userdp.data.records import Drop, Record
from userdp.data.sources.input_files import GENERATED
from userdp.data.sources.source import Entry, InputOptions, Source, SourceOptions

Row = dict[str, Any]
Parse = Callable[[Row], Entry]
"""Gives the record of a row, or why there is none."""
UserOf = Callable[[str], bytes | Drop]
"""Makes the user of a field's value."""
_PLACES_LOOKED_AT, ROWS_LOOKED_AT = 32, 100
_SECONDS = re.compile(r"-?\d{9,}(\.\d*)?")
"""Since 1970, as CSV writes them; 20180131 is a day, also as a number."""


@dataclass(frozen=True, kw_only=True)
class Table(Source):
    """Rows, of each of which ``parse`` makes a record.

    ``read(place, fields, at)`` gives each row of a place as field to value, or why it is none;
    ``fields`` are those that are looked at, or None for all.

    Args:
        parse: see there.
    """

    parse: Parse

    def rows(self, progress: Progress, fields: tuple[str, ...] | None) -> Iterator[Row | Drop]:
        """The rows of all places."""
        return self.each_place(lambda place, at: self.read(place, fields, at), progress)

    def entries(self, progress: Progress) -> Iterator[Entry]:
        """The records of all rows; see `Source.entries`."""
        for row in self.rows(progress, self.fields):
            if isinstance(row, Drop):
                yield row
                continue
            entry = self.parse(row)
            if GENERATED in row and row[GENERATED] and not isinstance(entry, Drop):
                model = row[GENERATED]
                model = model.decode() if isinstance(model, bytes) else str(model)
                entry = entry._replace(written_by=model)
            yield entry

    def first_fields(self) -> Iterator[Collection[str]]:
        """The names of the fields of the first rows of the first places."""
        for place in self.places[:_PLACES_LOOKED_AT]:
            rows = replace(self, places=(place,)).rows(Progress(), None)
            yield from (row.keys() for row in islice(rows, ROWS_LOOKED_AT) if isinstance(row, dict))

    def advice(self) -> str:
        """The fields that are looked for, and those that are there; see `Source.advice`."""
        wanted = ", ".join(map(repr, self.fields))
        there = dict.fromkeys(name for names in self.first_fields() for name in names)
        return (
            f"looked for the fields {wanted}; fields there: "
            f"{_field_names(there, self.fields)}. Name the right ones with --user and --text"
        )


def plain_parser(
    options: SourceOptions, user_of: UserOf | None = None
) -> tuple[tuple[str, ...], Parse]:
    """A field for the user, one for the text, perhaps one for the date; and how they are parsed.

    Args:
        options: which fields; the user's holds a string or a whole number, or a list of such: all
            owners; the text's a string, or its bytes in UTF-8.
        user_of: makes the user of the field's value; None: the value itself.
    """
    if (options.date is None) != (options.held_out_from is None):
        raise UseError(
            "input.date and input.held_out_from go together: a field, and the first day held out",
            hint="give both, as --set input.date=FIELD --set input.held_out_from=DAY, or none",
        )
    fields = (options.user, options.text, *filter(None, [options.date]))
    day = first_held_out(options)

    def parse(row: Row) -> Entry:
        held_out = day is not None and is_from(row.get(options.date or ""), day)
        return record_of(row.get(options.user), row.get(options.text), held_out, user_of=user_of)

    return fields, parse


def record_of(
    user: Any,
    text: Any,
    held_out: bool | Drop = False,
    *,
    pieces: tuple[tuple[int, int], ...] | None = None,
    user_of: UserOf | None = None,
) -> Entry:
    """The record of a text, or why there is none.

    An unusable text, or date, has its place in the graph of owners.

    Args:
        user: what names the user, or all owners as a list.
        text: a string, or its bytes; or why there is none.
        held_out: see `Record`; or why that is not known.
        pieces: see `Record`.
        user_of: see `plain_parser`.
    """
    owners = owners_of(user, user_of)
    if isinstance(owners, Drop):
        return owners
    several = owners if len(owners) > 1 else ()
    content = text_of(text)
    if isinstance(content, Drop):
        return Record(owners[0], b"", owners=several, unusable=content)
    if isinstance(held_out, Drop):
        return Record(owners[0], b"", owners=several, unusable=held_out)
    return Record(owners[0], content, held_out, pieces, several)


def owners_of(value: Any, user_of: UserOf | None = None) -> tuple[bytes, ...] | Drop:
    """The users that a field's value names, each once, in its order."""
    if not isinstance(value, list):
        user = _user(value, user_of)
        return user if isinstance(user, Drop) else (user,)
    owners: dict[bytes, None] = {}
    for one in value:
        user = _user(one, user_of)
        if isinstance(user, Drop):
            return user
        owners[user] = None
    return tuple(owners) or Drop.NO_USER_FIELD


def _user(value: Any, user_of: UserOf | None) -> bytes | Drop:
    try:
        if not isinstance(value, bool) and isinstance(value, Integral):
            value = str(int(value))
        name = value.decode() if isinstance(value, bytes) else value
        if not isinstance(name, str):
            return Drop.NO_USER_FIELD if name is None else Drop.USER_NOT_TEXT
        user = name.encode()
    except ValueError:  # half of a surrogate pair; more digits than Python writes
        return Drop.INVALID_UTF8
    if not name.strip():  # of the text: bytes have fewer white spaces
        return Drop.NO_USER
    return user if user_of is None else user_of(name)


def text_of(value: Any) -> bytes | Drop:
    """The text of a field's value as UTF-8."""
    try:
        if isinstance(value, Drop):
            return value
        if isinstance(value, str):
            return value.encode() if value.strip() else Drop.EMPTY_TEXT
        if isinstance(value, bytes):
            return value if value.decode().strip() else Drop.EMPTY_TEXT
    except UnicodeError:
        return Drop.INVALID_UTF8
    return Drop.NO_TEXT_FIELD if value is None else Drop.NOT_TEXT


def is_from(value: Any, day: datetime) -> bool | Drop:
    """Whether a field's value is a date on or after ``day``; times without a zone are UTC."""
    moment: datetime
    try:
        if isinstance(value, bytes):
            value = value.decode()
        if isinstance(value, date):
            value = value.isoformat()
        if isinstance(value, int | float) and 10**7 <= value < 10**8:
            value = str(int(value))  # a day, as its text is
        if isinstance(value, str) and _SECONDS.fullmatch(value.strip()):
            value = float(value)
        if isinstance(value, str):
            moment = datetime.fromisoformat(value.strip().removesuffix(" UTC"))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            moment = datetime.fromtimestamp(value, UTC)
        else:
            return Drop.NO_DATE
    except (ValueError, OverflowError, OSError):
        return Drop.NO_DATE
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) >= day


def first_held_out(options: InputOptions) -> datetime | None:
    """The day ``held_out_from``; `UseError` if it is no ISO date."""
    if options.held_out_from is None:
        return None
    try:
        moment = datetime.fromisoformat(str(options.held_out_from))
    except ValueError:
        raise UseError(
            f"held_out_from must be an ISO date, got {options.held_out_from!r}",
            hint="as 2018-01-01",
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _field_names(names: Iterable[str], wanted: Collection[str]) -> str:
    """Names of fields, for a message: those that look like one, or resemble what was asked for.

    A table without a header has somebody's record in its place, which no message quotes.

    >>> _field_names(["user", "body", "Dear Ann"], ["text"])
    "'user', 'body', and others that do not look like names"
    """
    known = [str(name) for name in names]
    near = {one for word in wanted for one in get_close_matches(word, known, cutoff=0.8)}
    shown = [repr(name) for name in known if name.isidentifier() or name in near]
    if len(shown) < len(known):
        others = "and others that do not look like names"
        shown.append(others if shown else "none that looks like one")
    return ", ".join(shown) or "none"
