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
from contextlib import closing
from pathlib import Path
from typing import Any

from userdp.core.errors import UseError, kind_of
from userdp.data.records import Drop
from userdp.data.sources.base import At, Entry, SourceOptions, beginning
from userdp.data.sources.rows import owners_of, record_of_owners, text_of

_MAGIC = b"SQLite format 3\0"
_ROWS = (
    "SELECT client_id, split_name, serialized_example_proto FROM examples "
    "WHERE split_name IN ('train', 'test') ORDER BY rowid"
)


def matches(path: Path) -> bool:
    """Whether it is an SQLite file."""
    return beginning(path).startswith(_MAGIC)


def read(path: Path, options: SourceOptions, at: At) -> Iterator[Entry]:
    """The posts of the training and test splits, by client."""
    address, done = f"{path.absolute().as_uri()}?mode=ro", 0
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.text_factory = bytes
            for client, split, example in database.execute(_ROWS):
                yield record_of_owners(owners_of(client), _text(example), split == b"test")
                done += len(example) if isinstance(example, bytes) else 0
                at(done)
    except (sqlite3.Error, UnicodeError) as error:  # damaged names are no UTF-8
        raise UseError(
            f"{path} cannot be read as Stack Overflow's SQLite file: {kind_of(error)}",
            hint="expected the table `examples` of TensorFlow Federated's data set",
        ) from error


def _text(example: Any) -> bytes | Drop:
    if not isinstance(example, bytes):  # SQLite's columns hold any type; of a number n come n zeros
        return Drop.UNREADABLE
    try:
        return text_of(_parse_example(example).get("tokens"))
    except ValueError:
        return Drop.UNREADABLE


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
