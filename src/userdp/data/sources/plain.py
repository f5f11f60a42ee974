"""`PlainParser` over whole columns: the records that it makes, without a Python call for each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.data.columns import Columns, bytes_of, offsets_of
from userdp.data.records import Drop
from userdp.data.sources.arrow import column_values
from userdp.data.sources.rows import PlainParser, is_from

_TEXT_TYPES = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
)


def _first_bytes(characters: str) -> NDArray[np.bool_]:
    table = np.zeros(256, dtype=bool)
    table[[character.encode()[0] for character in characters]] = True
    return table


# Which first bytes white space can have: of text as `str.strip` sees it, of users as `bytes.strip`.
_SPACES = _first_bytes("".join(chr(i) for i in range(0x3001) if chr(i).isspace()))
_USER_SPACES = _first_bytes(" \t\n\r\x0b\x0c")


@dataclass(frozen=True, slots=True)
class Parsed:
    """What became of the rows of a batch.

    Args:
        columns: those that can be used.
        drops: the others, by reason.
    """

    columns: Columns
    drops: Counter[Drop]


def parse_columns(batch: pa.RecordBatch, parser: PlainParser, first: int) -> Parsed | None:
    """The records of a batch of rows, numbered from ``first``; None if rows must be read singly.

    Guarantee: the same records and drops as `PlainParser.record` of each row. None where a column
    is missing or null throughout, holds lists or invalid UTF-8, or users are made by a function.
    """
    wanted = set(parser.fields)
    if len(wanted) < len(parser.fields) or parser.user_of is not None or not len(batch):
        return None
    if len(wanted & set(batch.schema.names)) < len(wanted):
        return None
    users = _texts(batch.column(parser.user_field), whole_numbers=True)
    texts = _texts(batch.column(parser.text_field))
    if users is None or texts is None:
        return None
    reasons = np.zeros(len(batch), dtype=np.uint8)
    if parser.date_field is not None and parser.held_out_from is not None:
        column = batch.column(parser.date_field)
        if column.null_count == len(column):
            return None
        dates = [is_from(value, parser.held_out_from) for value in column_values(column)]
        held_out = np.array([date is True for date in dates], dtype=bool)
        _mark(reasons, np.array([isinstance(date, Drop) for date in dates]), Drop.NO_DATE)
    else:
        held_out = np.zeros(len(batch), dtype=bool)
    # From the last reason to the first: what is marked later stands.
    _mark(
        reasons, _blank(texts, _SPACES, lambda value: not value.decode().strip()), Drop.EMPTY_TEXT
    )
    _mark(reasons, _nulls(texts), Drop.NO_TEXT_FIELD)
    _mark(reasons, _blank(users, _USER_SPACES, lambda value: not value.strip()), Drop.NO_USER)
    _mark(reasons, _nulls(users), Drop.NO_USER_FIELD)
    orders = np.arange(first, first + len(batch), dtype=np.int64)
    kept = reasons == 0
    if not kept.all():
        mask = pa.array(kept)
        users, texts = users.filter(mask), texts.filter(mask)
        orders, held_out = orders[kept], held_out[kept]
    counts = np.bincount(reasons, minlength=len(_REASONS) + 1)
    drops = Counter({r: int(n) for r, n in zip(_REASONS, counts[1:], strict=True) if n})
    return Parsed(Columns(users, texts, orders, held_out), drops)


_REASONS = (
    Drop.NO_USER_FIELD,
    Drop.NO_USER,
    Drop.NO_TEXT_FIELD,
    Drop.EMPTY_TEXT,
    Drop.NO_DATE,
)


def _mark(reasons: NDArray[np.uint8], rows: NDArray[np.bool_], reason: Drop) -> None:
    reasons[rows] = 1 + _REASONS.index(reason)


def _texts(column: pa.Array, *, whole_numbers: bool = False) -> pa.LargeBinaryArray | None:
    """A column as large_binary of valid UTF-8, or None."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if column.null_count == len(column):
        return None
    if pa.types.is_integer(kind) and whole_numbers:
        column = column.cast(pa.string())
    elif not any(check(kind) for check in _TEXT_TYPES):
        return None
    try:
        texts = column.cast(pa.large_string())
        texts.validate(full=True)
    except (pa.ArrowException, UnicodeDecodeError):
        return None
    return texts.cast(pa.large_binary())


def _nulls(column: pa.Array) -> NDArray[np.bool_]:
    if column.null_count == 0:
        return np.zeros(len(column), dtype=bool)
    nulls: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _blank(column: pa.LargeBinaryArray, spaces: NDArray[np.bool_], is_blank: Any) -> Any:
    """Which values are nothing but white space; only those that begin with such are looked at."""
    offsets = offsets_of(column)
    empty = offsets[1:] == offsets[:-1]
    values = bytes_of(column)
    if not len(values):
        return empty
    maybe = spaces[values[np.minimum(offsets[:-1], len(values) - 1)]] & ~empty
    blank = empty
    for row in np.flatnonzero(maybe).tolist():
        blank[row] = is_blank(values[offsets[row] : offsets[row + 1]].tobytes())
    return blank
