"""Files of a store: written whole, synced, and with a checksum."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.errors import UseError, kind_of


def write_arrow(path: Path, columns: dict[str, pa.Array], mode: int = 0o644) -> None:
    """One Arrow IPC file of one record batch, synced; it must not exist yet."""
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        with pa.ipc.new_file(file, batch.schema) as sink:
            sink.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())


def read_table(path: Path, kinds: Mapping[str, pa.DataType]) -> pa.Table:
    """A file that `write_arrow` wrote, as a table over a memory map: nothing is copied.

    Guarantee: it has exactly these columns, each in one piece, without nulls, and within the bytes
    of the file: Arrow itself believes what a file says of its lengths, and reads beyond its end.

    Args:
        path: of the file.
        kinds: the type of each column, in their order.

    Raises:
        OSError: there is no such file.
        UseError: it is damaged.
    """
    try:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
        table.validate(full=True)
    except FileNotFoundError:
        raise
    # The library's own errors have no common kind but this, and are of the system's kinds too.
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UseError(f"{path.name} is no file of Arrow: {kind_of(error)}") from error
    if dict(zip(table.column_names, table.schema.types, strict=True)) != dict(kinds):
        raise UseError(f"{path.name} has other columns than a store's has")
    if any(one.num_chunks > 1 or one.null_count for one in table.columns):
        raise UseError(f"{path.name} is in pieces, or lacks values, as a store's never does")
    return table


def read_columns(path: Path, kinds: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """The columns of a file that `write_arrow` wrote, as NumPy arrays over a memory map.

    Args:
        path: of the file.
        kinds: NumPy's name for the type of each column.

    Raises:
        OSError: there is no such file.
        UseError: it is damaged.
    """
    types = {name: pa.from_numpy_dtype(np.dtype(kind)) for name, kind in kinds.items()}
    table = read_table(path, types)
    return {name: _mapped(table.column(name), kind) for name, kind in kinds.items()}


def _mapped(column: pa.ChunkedArray, kind: str) -> NDArray[Any]:
    """The column's one piece, where it lies: pyarrow's `to_numpy` would import pandas (2 s)."""
    if not len(column):
        return np.empty(0, dtype=kind)
    piece = column.chunk(0)
    begin, end = piece.offset, piece.offset + len(piece)
    return np.frombuffer(piece.buffers()[1], dtype=kind)[begin:end]


def checksum(path: Path) -> dict[str, Any]:
    """``{"bytes": size, "sha256": hex digest}`` of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}
