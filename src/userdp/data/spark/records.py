"""The working files between both jobs: records as they come, in Parquet, which Spark reads."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from userdp.data.columns import BLOCK_BYTES, Columns, bounds_by_size, offsets_of

SCHEMA = pa.schema(
    [
        ("user", pa.large_binary()),
        ("place", pa.int64()),
        ("text", pa.large_binary()),
        ("held_out", pa.bool_()),
        ("pieces", pa.large_binary()),
    ]
)
READ_AS = "`user` BINARY, place BIGINT, text BINARY, held_out BOOLEAN, pieces BINARY"
"""The same in Spark's words."""

_FILE_BYTES = 2**28
"""Before compression."""
_GROUP_RECORDS, _BLOCK_RECORDS = 2**14, 2**12


def write_records(folder: Path, name: str, blocks: Iterable[Columns], *, first: int = 0) -> int:
    """Write all records of ``blocks`` into files of ``folder``; return how many they were.

    Guarantee: the files appear when all is written, and are the same at every attempt.

    Args:
        folder: of the working files; Spark reads all that do not begin with a dot.
        name: that the files' names begin with; nobody else's may.
        blocks: may be of any size.
        first: is added to each record's order.
    """
    attempt = secrets.token_hex(4)
    rows = (batch for block in blocks if len(block) for batch in [_rows_of(block, first)])
    groups = _groups(rows)
    written: list[tuple[Path, Path]] = []
    records = 0
    for group in groups:
        place = folder / f"{name}-{len(written):04d}.parquet"
        hidden = place.with_name(f".{attempt}-{place.name}")
        with pq.ParquetWriter(hidden, SCHEMA, compression="zstd", use_dictionary=[]) as writer:
            size = 0
            for table in chain([group], groups):
                writer.write_table(table, row_group_size=len(table))  # Spark reads one at a time
                records += len(table)
                size += table.nbytes
                if size > _FILE_BYTES:
                    break
        written.append((hidden, place))
    for hidden, place in written:
        hidden.replace(place)
    return records


def columns_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Columns]:
    """Records that Spark hands over, in blocks as one process makes them."""
    for whole in batches:
        rows = _columns_of(whole)
        sizes = np.diff(offsets_of(rows.texts))
        for bounds in bounds_by_size(sizes, records=_BLOCK_RECORDS, size=BLOCK_BYTES):
            yield rows.part(*bounds)


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """``batches`` joined into row groups of a size that is worth one."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        size = sum(one.nbytes for one in waiting)
        if size >= BLOCK_BYTES or sum(map(len, waiting)) >= _GROUP_RECORDS:
            yield pa.Table.from_batches(waiting, SCHEMA)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting, SCHEMA)


def _rows_of(block: Columns, first: int) -> pa.RecordBatch:
    nothing = pa.repeat(pa.scalar(b"", pa.large_binary()), len(block))
    columns = [
        block.users,
        pa.array(block.orders + first),
        block.texts,
        pa.array(block.held_out),
        nothing if block.pieces is None else block.pieces,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _columns_of(batch: pa.RecordBatch) -> Columns:
    users, text, pieces = (
        batch.column(name).cast(pa.large_binary()) for name in ("user", "text", "pieces")
    )
    has_pieces = bool(np.diff(offsets_of(pieces)).any())
    return Columns(
        users,
        text,
        batch.column("place").to_numpy(),
        batch.column("held_out").to_numpy(zero_copy_only=False),
        pieces if has_pieces else None,
    )
