"""Records in blocks of columns: what sources give, and what all later stages work on.

A block costs a few calls of Arrow and NumPy whatever its number of records; a `Record` each costs
microseconds. Iterating a block gives its records, for stages that need single ones.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.data.records import Drop, Record, Tally

_BLOCK_RECORDS = 2**13
BLOCK_BYTES = 2**23


@dataclass(frozen=True, slots=True)
class Columns:
    """A block of records.

    Args:
        users, texts: Arrow large_binary without nulls, as in `Record`.
        orders: int64 (records,).
        held_out: bool (records,).
        pieces: large_binary, `Record.pieces` packed by `pack`, empty for None; None where no record
            has pieces.
        owners, unusable: as in `Record`, by the number of a record in the block; most have none.
    """

    users: pa.LargeBinaryArray
    texts: pa.LargeBinaryArray
    orders: NDArray[np.int64]
    held_out: NDArray[np.bool_]
    pieces: pa.LargeBinaryArray | None = None
    owners: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict)
    unusable: Mapping[int, Drop] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.users)

    def part(self, begin: int, end: int) -> Columns:
        """Records ``begin`` to ``end``, of which no owners are kept; nothing is copied."""
        size = end - begin
        return Columns(
            self.users.slice(begin, size),
            self.texts.slice(begin, size),
            self.orders[begin:end],
            self.held_out[begin:end],
            None if self.pieces is None else self.pieces.slice(begin, size),
        )

    def settled(self, tally: Tally) -> Columns:
        """The usable records, each its user's alone; the unusable ones are counted as dropped."""
        if not self.unusable:
            return self.part(0, len(self))
        for reason in self.unusable.values():
            tally.drop(reason)
        kept = np.ones(len(self), dtype=bool)
        kept[list(self.unusable)] = False
        mask = pa.array(kept)
        return Columns(
            self.users.filter(mask),
            self.texts.filter(mask),
            self.orders[kept],
            self.held_out[kept],
            None if self.pieces is None else self.pieces.filter(mask),
        )

    def __iter__(self) -> Iterator[Record]:
        packed = [b""] * len(self) if self.pieces is None else objects(self.pieces)
        rows = (objects(self.users), objects(self.texts), self.orders.tolist(), packed)
        marks = self.held_out.tolist()
        for row, (user, text, order, pieces, held_out) in enumerate(zip(*rows, marks, strict=True)):
            owners, unusable = self.owners.get(row, ()), self.unusable.get(row)
            yield Record(user, text, order, held_out, unpack(pieces), owners, unusable)


class BlockBuilder:
    """A block in the making."""

    def __init__(self) -> None:
        self._users: list[bytes] = []
        self._texts: list[bytes] = []
        self._orders: list[int] = []
        self._held_out: list[int] = []  # the numbers of such records in the block, as below
        self._pieces: dict[int, bytes] = {}
        self._owners: dict[int, tuple[bytes, ...]] = {}
        self._unusable: dict[int, Drop] = {}

    def __len__(self) -> int:
        return len(self._users)

    def add(
        self,
        user: bytes,
        text: bytes,
        order: int,
        held_out: bool = False,
        pieces: tuple[tuple[int, int], ...] | None = None,
        owners: tuple[bytes, ...] = (),
        unusable: Drop | None = None,
    ) -> None:
        """Append a record; the arguments are those of `Record`."""
        if pieces is not None:
            self._pieces[len(self._users)] = pack(pieces)
        if owners:
            self._owners[len(self._users)] = owners
        if unusable is not None:
            self._unusable[len(self._users)] = unusable
        if held_out:
            self._held_out.append(len(self._users))
        self._users.append(user)
        self._texts.append(text)
        self._orders.append(order)

    def block(self) -> Columns:
        """What was added."""
        held_out = np.zeros(len(self), dtype=bool)
        held_out[self._held_out] = True
        packed = [self._pieces.get(row, b"") for row in range(len(self))] if self._pieces else None
        return Columns(
            pa.array(self._users, pa.large_binary()),
            pa.array(self._texts, pa.large_binary()),
            np.array(self._orders, dtype=np.int64),
            held_out,
            None if packed is None else pa.array(packed, pa.large_binary()),
            self._owners,
            self._unusable,
        )


def bounds_by_size(
    sizes: NDArray[np.int64], *, records: int, size: int
) -> Iterator[tuple[int, int]]:
    """Where to cut records into blocks: (begin, end) of each.

    Args:
        sizes: int64 (records,), bytes of each record.
        records: a block has at most this many,
        size: and no more once it has this many bytes.
    """
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(sizes):
        full = np.searchsorted(ends, ends[begin] - sizes[begin] + size) + 1
        end = min(begin + records, int(full), len(sizes))
        yield begin, end
        begin = end


def in_columns(records: Iterable[Record]) -> Iterator[Columns]:
    """``records`` in blocks of bounded size."""
    builder, size = BlockBuilder(), 0
    for record in records:
        builder.add(*record)
        size += len(record.text)
        if len(builder) == _BLOCK_RECORDS or size >= BLOCK_BYTES:
            yield builder.block()
            builder, size = BlockBuilder(), 0
    if len(builder):
        yield builder.block()


def pack(pieces: tuple[tuple[int, int], ...]) -> bytes:
    """`Record.pieces` as bytes."""
    return struct.pack(f"<{2 * len(pieces)}q", *chain(*pieces))


def unpack(content: bytes) -> tuple[tuple[int, int], ...] | None:
    """What `pack` packed; None for nothing."""
    if not content:
        return None
    numbers = struct.unpack(f"<{len(content) // 8}q", content)
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def objects(array: pa.Array) -> list[Any]:
    """The values as Python objects, by Arrow's own loop: `to_pylist` takes several times longer."""
    values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return values


def offsets_of(array: pa.LargeBinaryArray) -> NDArray[np.int64]:
    """Where each value begins among `bytes_of` its buffer, and the end: int64 (values + 1,)."""
    if len(array) == 0:
        return np.zeros(1, dtype=np.int64)
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int64)
    return offsets[array.offset : array.offset + len(array) + 1]


def bytes_of(array: pa.LargeBinaryArray) -> NDArray[np.uint8]:
    """The buffer that `offsets_of` counts in."""
    buffer = array.buffers()[2]
    return np.zeros(0, dtype=np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def large_binary(offsets: NDArray[np.int64], values: pa.Buffer) -> pa.LargeBinaryArray:
    """The array of values that ``offsets`` (from 0) cut ``values`` into; nothing is copied."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), values]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
