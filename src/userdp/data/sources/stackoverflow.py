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

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from userdp.core.errors import UseError, kind_of
from userdp.data.records import Drop
from userdp.data.sources.input_files import beginning
from userdp.data.sources.parsing import record_of
from userdp.data.sources.source import At, Entry, SourceOptions

_MAGIC = b"SQLite format 3\0"
_ROWS = (
    "SELECT client_id, split_name, serialized_example_proto FROM examples "
    "WHERE split_name IN ('train', 'test') ORDER BY rowid"
)
_SIZE = rb"[\x80-\xff]*[\x00-\x7f]"
_TOKENS = re.compile(rb"\n\x06tokens\x12%b\n%b\n(%b)" % (_SIZE, _SIZE, _SIZE))
"""In protobuf's wire format: the key, then a feature that holds a list of bytes that holds a value,
each with its size before it. Features of the same name that a post's own text spells are that
person's words, too."""


def is_sqlite(path: Path) -> bool:
    """Whether it is an SQLite file."""
    return beginning(path).startswith(_MAGIC)


def read(path: Path, options: SourceOptions, at: At) -> Iterator[Entry]:
    """The posts of the training and test splits, by client."""
    address, done = f"{path.absolute().as_uri()}?mode=ro", 0
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.text_factory = bytes
            for client, split, example in database.execute(_ROWS):
                yield record_of(client, _text(example), split == b"test")
                done += len(example) if isinstance(example, bytes) else 0
                at(done)
    except (sqlite3.Error, UnicodeError) as error:  # damaged names are no UTF-8
        raise UseError(
            f"{path} cannot be read as Stack Overflow's SQLite file: {kind_of(error)}",
            hint="expected the table `examples` of TensorFlow Federated's data set",
        ) from error


def _text(example: Any) -> bytes | Drop:
    """The first value of the feature ``tokens``."""
    if not isinstance(example, bytes):  # SQLite's columns hold any type; of a number n come n zeros
        return Drop.UNREADABLE
    found = _TOKENS.search(example)
    if found is None:
        return Drop.UNREADABLE
    size = sum((byte & 127) << 7 * place for place, byte in enumerate(found[1]))
    text = example[found.end() : found.end() + size]
    return text if len(text) == size else Drop.UNREADABLE
