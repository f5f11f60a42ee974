"""A record, blocks of records, and the count of what happened to each one (invariant 10).

Sources give `Record`s one by one; from grouping on they travel in *blocks*: Arrow record batches of
the schema `BLOCK`, which cost a few calls of Arrow and NumPy whatever their number of records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from userdp.core.errors import FailureError


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
    ALREADY_READ = "commit of a repository before"
    NO_DOMAIN = "URL without a registered domain"
    NO_ANSWER = "conversation without an assistant's turn"
    NO_CONTENT = "message without text, such as a tool call or an image"
    BAD_TEMPLATE = "conversation that the chat template refuses"
    SINGLETON = "only record of its user"
    OVER_BOUND = "over the bound of one of its owners"
    BOTH_SIDES = "owners on both sides of the held-out-users split"
    UNREADABLE_MODULE = "unreadable module"
    REPEATED = "docstring that another module has"
    TOO_SHORT = "fewer than 2 tokens"
    BAD_TOKENS = "tokens outside the vocabulary, or labels of other tokens"


class Record(NamedTuple):
    """One piece of text of one user, before tokenizing.

    Args:
        user: the user's id as UTF-8, not empty.
        text: UTF-8, not blank.
        held_out: the source's own split says that this record is not trained on.
        pieces: for conversations: (end, kind) of consecutive pieces of the text, ``end`` in
            characters, ``kind`` the sum of `TARGET` (the loss counts it) and `MARKUP` (special
            tokens in it are such; elsewhere they are plain text). None: all is target.
        owners: all users that the record belongs to, ``user`` among them; empty: ``user`` alone.
        unusable: why the record cannot be stored; its place in the ownership graph counts whatever
            its text is (`ownership`).
        written_by: the model that generated the text, where the source tells one.
    """

    user: bytes
    text: bytes
    held_out: bool = False
    pieces: tuple[tuple[int, int], ...] | None = None
    owners: tuple[bytes, ...] = ()
    unusable: Drop | None = None
    written_by: str = ""


TARGET, MARKUP = 1, 2

BLOCK = pa.schema(
    [
        ("user", pa.large_binary()),
        ("content", pa.large_binary()),
        ("held_out", pa.bool_()),
    ]
)
"""Records in columns, no value null: ``content`` is the text, or what `packed` makes of a text and
its pieces; later the tokens, see `userdp.data.examples.tokenized`."""
BLOCK_RECORDS, BLOCK_BYTES = 2**11, 2**23
"""Most records of a block, and how many bytes of text end one. A tokenizer holds some hundred bytes
for each token of a block."""


def in_blocks(records: Iterable[Record], *, loss_mask: bool = False) -> Iterator[pa.RecordBatch]:
    """``records`` in blocks of bounded size; with a loss mask each text is `packed`.

    Their values are held by column. Thousands of records held at once would be walked by the
    garbage collector again and again, which took a quarter of the time of reading.
    """
    columns: list[list[Any]] = [[] for _ in BLOCK.names]
    users, texts, held_out = columns
    size = 0
    for record in records:
        users.append(record.user)
        texts.append(packed(record) if loss_mask else record.text)
        held_out.append(record.held_out)
        size += len(record.text)
        if len(users) == BLOCK_RECORDS or size >= BLOCK_BYTES:
            yield pa.record_batch(columns, schema=BLOCK)
            for column in columns:
                column.clear()
            size = 0
    if users:
        yield pa.record_batch(columns, schema=BLOCK)


def packed(record: Record) -> bytes:
    """A text and its pieces as one value: how many pieces, the pieces, and the text."""
    pieces = record.pieces or [(len(record.text.decode()), TARGET)]
    return np.array([(len(pieces), 0), *pieces], "<i8").tobytes() + record.text


def unpacked(value: bytes) -> tuple[str, list[tuple[int, int]]]:
    """What `packed` made one value of."""
    begin = 16 * (1 + int.from_bytes(value[:8], "little"))
    pieces = np.frombuffer(value[16:begin], "<i8").reshape(-1, 2).tolist()
    return value[begin:].decode(), [(end, kind) for end, kind in pieces]


def offsets_of(array: pa.LargeBinaryArray) -> NDArray[np.int64]:
    """Where each value begins in the array's last buffer, and the end: int64 (values + 1,)."""
    if len(array) == 0:
        return np.zeros(1, dtype=np.int64)
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int64)
    return offsets[array.offset : array.offset + len(array) + 1]


def run_starts(users: pa.LargeBinaryArray) -> NDArray[np.int64]:
    """Where the records of each user begin among records ordered by user; nowhere for none."""
    if not len(users):
        return np.zeros(0, dtype=np.int64)
    other = pc.not_equal(users.slice(1), users.slice(0, len(users) - 1))
    return np.append(0, np.flatnonzero(other.to_numpy(zero_copy_only=False)) + 1)


class ExampleDrop(StrEnum):
    """Why a piece of a stored record is not in the store."""

    TOO_SHORT = "fewer than 2 tokens left at a record's end"
    NO_TARGET = "no token that the loss counts"
    ONE_PER_RECORD = "beyond a record's first example, in a store of several owners"


@dataclass
class Tally:
    """Books of one `prepare`: what was read, stored and dropped.

    >>> tally = Tally()
    >>> tally.records_read += 3; tally.records_stored += 2; tally.drop(Drop.EMPTY_TEXT)
    >>> tally.balance(); dict(tally.drops)
    {'empty text': 1}
    """

    records_read: int = 0
    records_stored: int = 0
    drops: Counter[str] = field(default_factory=Counter)
    example_drops: Counter[str] = field(default_factory=Counter)
    written_by: set[str] = field(default_factory=set)
    """Models that wrote some of the records; see `userdp.data.sources.rows_to_records`."""
    of_several: int = 0
    """Records that had several owners, and are their first owner's."""

    @property
    def kept(self) -> int:
        """Records read and not dropped so far."""
        return self.records_read - self.drops.total()

    def drop(self, reason: Drop, records: int = 1) -> None:
        """Count records dropped for ``reason``; a reason of none is not named."""
        if records:
            self.drops[str(reason)] += records

    def drop_examples(self, reason: ExampleDrop, examples: int = 1) -> None:
        """Count examples dropped from records that are stored."""
        if examples:
            self.example_drops[str(reason)] += examples

    def balance(self) -> None:
        """Every record read is stored or dropped with a reason, else `FailureError`."""
        if self.records_stored != self.kept:
            raise FailureError(
                f"the books do not balance: {self.records_read} records read, "
                f"{self.records_stored} stored and {self.drops.total()} dropped; a record was lost "
                "without a reason, so the store was not written",
                hint="this is a defect in userdp or in a source: please report it",
            )
