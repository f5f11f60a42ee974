"""A block of records as columns: what native readers make and what grouping works on.

A block costs a few calls of Arrow and NumPy whatever its number of records; a `Record` each costs
microseconds. Iterating a block gives its records, for stages that need single ones.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.data.records import Record

BLOCK_RECORDS = 2**15
BLOCK_BYTES = 2**23


@dataclass(frozen=True, slots=True)
class Columns:
    """Records of one owner each, that can be used.

    Args:
        users, texts: Arrow large_binary without nulls, as in `Record`.
        orders: int64 (records,).
        held_out: bool (records,).
        pieces: large_binary, `Record.pieces` packed by `pack`, empty for None; None where no record
            has pieces.
    """

    users: pa.LargeBinaryArray
    texts: pa.LargeBinaryArray
    orders: NDArray[np.int64]
    held_out: NDArray[np.bool_]
    pieces: pa.LargeBinaryArray | None = None

    def __len__(self) -> int:
        return len(self.users)

    def __getitem__(self, part: slice) -> Columns:
        begin, end, step = part.indices(len(self))
        assert step == 1, "a block is cut into consecutive parts alone"
        size = max(end - begin, 0)
        return Columns(
            self.users.slice(begin, size),
            self.texts.slice(begin, size),
            self.orders[begin:end],
            self.held_out[begin:end],
            None if self.pieces is None else self.pieces.slice(begin, size),
        )

    def __iter__(self) -> Iterator[Record]:
        packed = [b""] * len(self) if self.pieces is None else objects(self.pieces)
        rows = (objects(self.users), objects(self.texts), self.orders.tolist(), packed)
        marks = self.held_out.tolist()
        for user, text, order, pieces, held_out in zip(*rows, marks, strict=True):
            yield Record(user, text, order, held_out, unpack(pieces))


def in_columns(records: Iterable[Record]) -> Iterator[Columns]:
    """``records`` in blocks of bounded size; who owns them besides `Record.user` is left out."""
    return map(_block, batched(records))


def batched(records: Iterable[Record]) -> Iterator[list[Record]]:
    """``records`` in lists of bounded size."""
    held: list[Record] = []
    size = 0
    for record in records:
        held.append(record)
        size += len(record.text) + len(record.user)
        if len(held) == BLOCK_RECORDS or size >= BLOCK_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _block(records: list[Record]) -> Columns:
    pieces = None
    if any(record.pieces is not None for record in records):
        packed = [b"" if record.pieces is None else pack(record.pieces) for record in records]
        pieces = pa.array(packed, pa.large_binary())
    return Columns(
        pa.array([record.user for record in records], pa.large_binary()),
        pa.array([record.text for record in records], pa.large_binary()),
        np.array([record.order for record in records], dtype=np.int64),
        np.array([record.held_out for record in records], dtype=bool),
        pieces,
    )


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
