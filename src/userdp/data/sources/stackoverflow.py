"""Stack Overflow as TensorFlow Federated hands it out: one SQLite file.

Expected input: ``stackoverflow.sqlite`` (unpack ``.lzma`` first), with the table ``examples``
(``split_name``, ``client_id``, ``serialized_example_proto``); each example is a
``tf.train.Example`` with the features ``tokens`` (the text) and ``creation_date``.

The splits are the data set's own, by date: ``train`` (before 2018-01-01 UTC) is trained on and
``test`` (after) held out, as in Charles et al. 2024, Appendix D; ``heldout`` is not read. To follow
the paper, hold out no further users: ``--held-out-users 0``. For the same data as JSON Lines or
Parquet use ``--date creation_date --held-out-from 2018-01-01 --split given``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from userdp.data.progress import Progress
from userdp.data.records import Drop, Record
from userdp.data.sources.base import Source, SourceOptions, beginning, expand
from userdp.data.sources.rows import owners_of, record_of
from userdp.errors import UseError, kind_of

_MAGIC = b"SQLite format 3\0"
_ROWS = (
    "SELECT client_id, split_name, serialized_example_proto FROM examples "
    "WHERE split_name IN ('train', 'test') ORDER BY rowid"
)
_REPORT_EVERY = 1024


def build(paths: list[str], options: SourceOptions) -> _StackOverflow:
    """The source for SQLite files ``paths``."""
    return _StackOverflow(paths=expand(paths, suffixes=(".sqlite",), what="SQLite files"))


def matches(path: Path) -> bool:
    """Whether it is an SQLite file."""
    return beginning(path).startswith(_MAGIC)


@dataclass(frozen=True, kw_only=True, slots=True)
class _StackOverflow(Source):
    """The posts of the training and test splits, by client."""

    paths: tuple[Path, ...]

    kind = "stackoverflow"

    def facts(self) -> dict[str, Any]:
        """The number of files."""
        return {"files": len(self.paths), "layout": "tff"}

    def entries(self, progress: Progress) -> Iterator[Record | Drop]:
        """The posts; see `Source.entries`."""
        rows = chain.from_iterable(map(_rows, self.paths))
        for order, (client, split, example) in enumerate(rows):
            yield _record(client, split, example, order)
            if order % _REPORT_EVERY == 0:
                progress.at(order)


def _rows(path: Path) -> Iterator[tuple[Any, Any, Any]]:
    database = None
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        database.text_factory = bytes
        yield from database.execute(_ROWS)
    except (sqlite3.Error, UnicodeError) as error:  # damaged names are no UTF-8
        raise UseError(
            f"{path} cannot be read as Stack Overflow's SQLite file: {kind_of(error)}",
            hint="expected the table `examples` of TensorFlow Federated's data set",
        ) from error
    finally:
        if database is not None:
            database.close()


def _record(client: Any, split: bytes, example: Any, order: int) -> Record | Drop:
    try:
        tokens = _parse_example(bytes(example)).get("tokens")
    except (ValueError, TypeError):
        owners = owners_of(client)
        return owners if isinstance(owners, Drop) else Drop.UNREADABLE
    return record_of(client, tokens, order, split == b"test")


def _parse_example(message: bytes) -> dict[str, bytes]:
    """The byte features of a serialized ``tf.train.Example``, the first value of each.

    A reader of the wire format: Example.features = 1, Features.feature = 1 (a map: key = 1,
    value = 2), Feature.bytes_list = 1, BytesList.value = 1.

    Raises:
        ValueError: ``message`` is none.
    """
    features: dict[str, bytes] = {}
    for part in _fields(message, 1):
        for entry in _fields(part, 1):
            key = next(_fields(entry, 1), b"")
            for feature in _fields(entry, 2):
                for values in _fields(feature, 1):
                    value = next(_fields(values, 1), None)
                    if value is not None:
                        features[key.decode()] = value
    return features


def _fields(message: bytes, wanted: int) -> Iterator[bytes]:
    """The length-delimited fields of number ``wanted``."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == 0:
            _, place = _varint(message, place)
        elif kind in (1, 5):
            place += 8 if kind == 1 else 4
        elif kind == 2:
            size, place = _varint(message, place)
            if place + size > len(message):
                raise ValueError("a field goes beyond its message")
            if tag >> 3 == wanted:
                yield message[place : place + size]
            place += size
        else:
            raise ValueError(f"wire type {kind}")


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(message) and shift < 64:
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    raise ValueError("a number goes beyond its message")
