"""Files of a store: written whole, synced, and with a checksum."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray


def write_arrow(path: Path, columns: dict[str, pa.Array], mode: int = 0o644) -> None:
    """One Arrow IPC file of one record batch, synced; it must not exist yet."""
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        with pa.ipc.new_file(file, batch.schema) as sink:
            sink.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())


def read_table(path: Path) -> pa.Table:
    """An Arrow IPC file as a table over a memory map: nothing is copied."""
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def read_columns(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a file that `write_arrow` wrote, as NumPy arrays over a memory map."""
    table = read_table(path)
    return {
        name: table.column(name).combine_chunks().to_numpy(zero_copy_only=True)
        if table.num_rows == 0
        else table.column(name).chunk(0).to_numpy(zero_copy_only=True)
        for name in table.column_names
    }


def checksum(path: Path) -> dict[str, Any]:
    """``{"bytes": size, "sha256": hex digest}`` of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}
