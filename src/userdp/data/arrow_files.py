"""Tables in Arrow IPC files, read over a memory map, and flat arrays cut into pieces.

Every table of a store is one record batch, written once and synced.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.core.errors import UseError, kind_of
from userdp.core.files import OPERATOR_FILE, whole_file


def write_arrow(path: Path, table: pa.RecordBatch) -> None:
    """One Arrow IPC file of one record batch, for its operator; written whole or not at all."""
    with whole_file(path, mode=OPERATOR_FILE) as sink, pa.ipc.new_file(sink, table.schema) as file:
        file.write_batch(table)


def read_arrow(path: Path, schema: pa.Schema) -> pa.RecordBatch:
    """What `write_arrow` wrote, over a memory map: nothing is copied.

    Guarantee: it has exactly these columns, within the bytes of the file: Arrow itself believes
    what a file says of its lengths, and reads beyond the end of one that was cut short.

    Args:
        path: of the file.
        schema: the names and types of its columns.

    Raises:
        OSError: there is no such file, or the disk refused.
        UseError: it is damaged.
    """
    try:
        with pa.memory_map(str(path)) as file:
            batch = pa.ipc.open_file(file).get_batch(0)
        batch.validate(full=True)
    # Arrow's own errors are of the system's kinds too, but for the number that those have.
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UseError(f"{path.name} is no file of Arrow: {kind_of(error)}") from error
    if batch.schema != schema:
        raise UseError(f"{path.name} has other columns than a store's has")
    return batch


def numbers(column: pa.Array) -> NDArray[Any]:
    """Arrow's numbers where they lie: its own `to_numpy` would import pandas (2 s)."""
    kind = np.dtype(column.type.to_pandas_dtype())
    if not len(column):
        return np.zeros(0, kind)
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]


def pieces(
    values: NDArray[Any], begins: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[Any]:
    """``values[begins[i] : begins[i] + lengths[i]]`` for each i, one after another."""
    places = merged(begins, lengths)
    return np.concatenate([values[:0], *(values[begin:end] for begin, end in places)])


def merged(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """(begin, end) of consecutive stretches; those that touch, such as a user's examples, as one.

    >>> list(merged(np.array([0, 3, 9]), np.array([3, 2, 1])))
    [(0, 5), (9, 10)]
    """
    ends = begins + lengths
    apart = begins[1:] != ends[:-1]
    first = np.append(begins[:1], begins[1:][apart])
    last = np.append(ends[:-1][apart], ends[-1:])
    return zip(first.tolist(), last.tolist(), strict=True)


def ends_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where consecutive parts begin and end: int64 (parts + 1,), from 0 on."""
    return np.append(0, np.cumsum(lengths, dtype=np.int64))


def members_of(sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each member of consecutive groups: the number of its group, and its place in the group.

    >>> members_of(np.array([2, 0, 3]))
    (array([0, 0, 2, 2, 2]), array([0, 1, 0, 1, 2]))
    """
    group = np.repeat(np.arange(len(sizes)), sizes)
    return group, np.arange(len(group)) - ends_of(sizes)[group]
