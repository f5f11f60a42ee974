"""Bring each user's records together in bounded memory, on one machine: DuckDB, out of core.

Records' contents (their tokens) wait in one plain file (the spool); DuckDB sorts their places in
it, by (user bytes, place). Its sort of short rows stays within the memory limit at any number of
rows; with the contents inside it does not (measured with DuckDB 2.0: 400 MB of 1 kB texts fail
under a limit of 200 MB).

Each block of records enters the spool sorted by user. So what neighbouring users wrote, which is
read together in the end, lies together in the part of each block. They are read, not mapped: Linux
maps up to a megabyte around each place that is touched, which soon is the whole spool.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from userdp.core.errors import FailureError, UseError, kind_of
from userdp.data.records import BLOCK, BLOCK_BYTES, offsets_of
from userdp.data.store_contents import ends_of, merged, numbers

MEMORY_LIMIT = "1GB"
_SIZE = re.compile(r"[1-9]\d{0,8}(\.\d+)?\s?[KMGT]i?B", re.IGNORECASE)
_NUMBERS = [("place", pa.int64()), ("size", pa.int64())]
_ROWS = pa.schema([BLOCK.field("user"), BLOCK.field("held_out"), *_NUMBERS])
"""What is sorted: ``place`` is where a record's content begins in the spool, ``size`` its bytes."""
_SORT = 'SELECT * FROM records ORDER BY "user", place'
RECORDS_AT_ONCE = 2**12


class Grouping:
    """Records in (`add`, `sort`), the same out ordered by (user bytes, place) (`batches`).

    Peak memory is about ``memory_limit`` plus some blocks of records, whatever their number.

    Args:
        folder: for the working files, about the size of the contents and 100 bytes per record.
        memory_limit: in DuckDB's words, e.g. "1GB".

    Raises:
        UseError: ``memory_limit`` is no size.
        FailureError: here and later, when the disk is full or the limit too small.
    """

    def __init__(self, folder: Path, *, memory_limit: str = MEMORY_LIMIT) -> None:
        if _SIZE.fullmatch(memory_limit) is None:
            raise UseError(
                f"memory_limit must be a size such as 1GB, got {memory_limit!r}",
                hint="a number and one of KB, MB, GB, TB",
            )
        self._memory_limit = memory_limit
        self._rows, self._spill = folder / "rows.arrow", folder / "spill"
        self._spool, self._sorted = folder / "contents", folder / "sorted.arrow"

    def add(self, blocks: Iterable[pa.RecordBatch]) -> None:
        """Take in all records of ``blocks``."""
        end = 0
        with (
            self._spool.open("wb", buffering=2**20) as spool,
            pa.OSFile(str(self._rows), "wb") as file,
            pa.ipc.new_stream(file, _ROWS) as rows,
        ):
            for block in blocks:
                block = block.take(pc.sort_indices(block["user"]))  # a stable sort
                begins = offsets_of(block["content"])
                spool.write(memoryview(block["content"].buffers()[2])[begins[0] : begins[-1]])
                places = begins[:-1] - begins[0] + end
                columns = [block["user"], block["held_out"], places, np.diff(begins)]
                rows.write_batch(pa.record_batch(columns, schema=_ROWS))
                end += int(begins[-1] - begins[0])

    def sort(self) -> None:
        """Sort what was added."""
        config: dict[str, Any] = {
            "memory_limit": self._memory_limit,
            "temp_directory": str(self._spill),
            "threads": 2,
            "preserve_insertion_order": False,
        }
        try:
            with duckdb.connect(":memory:", config=config) as database:
                shows = database.execute("SELECT current_setting('enable_progress_bar')")
                if shows.fetchone() != (False,):  # a notebook without widgets fails to set it
                    database.execute("SET enable_progress_bar = false")
                database.execute("SET arrow_large_buffer_size = true")
                with pa.OSFile(str(self._rows)) as file, pa.OSFile(str(self._sorted), "wb") as out:
                    database.register("records", pa.ipc.open_stream(file))
                    batches = database.sql(_SORT).to_arrow_reader(RECORDS_AT_ONCE)
                    with pa.ipc.new_stream(out, _ROWS) as sink:
                        for batch in batches:
                            sink.write_batch(batch)
        except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
            raise _explained(error) from error
        self._rows.unlink()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All records by (user bytes, place), in blocks."""
        with pa.OSFile(str(self._sorted)) as file, pa.OSFile(str(self._spool)) as spool:
            for rows in pa.ipc.open_stream(file):
                begin, ends = 0, np.cumsum(rows["size"])
                while begin < len(rows):  # a block takes no more once it has `BLOCK_BYTES`
                    before = ends[begin - 1] if begin else 0
                    own = rows[begin : np.searchsorted(ends, before + BLOCK_BYTES) + 1]
                    yield own.append_column("content", _contents(spool, own)).select(BLOCK.names)
                    begin += len(own)


def _contents(spool: pa.NativeFile, rows: pa.RecordBatch) -> pa.LargeBinaryArray:
    """The content of each row, read in the order in which they lie in the spool."""
    order = np.argsort(rows["place"])
    begins, sizes = (numbers(rows[name])[order] for name in ("place", "size"))
    content = b"".join(spool.read_at(end - begin, begin) for begin, end in merged(begins, sizes))
    buffers = [None, pa.py_buffer(ends_of(sizes)), pa.py_buffer(content)]
    texts = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(rows), buffers)
    return texts.take(pa.array(np.argsort(order)))


def _explained(error: Exception) -> BaseException:
    """The exception of ours for an error of the database or of its files.

    DuckDB runs Python's signal handlers while it computes, and replaces their exception by one of
    its own that quotes it.
    """
    words = ("Query interrupted", "KeyboardInterrupt")
    if isinstance(error, duckdb.InterruptException) or any(one in str(error) for one in words):
        return KeyboardInterrupt()
    if not isinstance(error, duckdb.Error | pa.ArrowException | OSError):
        return error
    return FailureError(
        f"grouping records by user failed: {kind_of(error)}",
        hint="is the disk full (the text lies there once more), or memory_limit too small?",
    )
