"""Bring each user's records together in bounded memory, on one machine: DuckDB, out of core.

Texts wait in one plain file (the spool); DuckDB sorts their places, by (user bytes, place). Its
sort of short rows stays within the memory limit at any number of rows; with the texts inside it
does not (measured with DuckDB 2.0: 400 MB of 1 kB texts fail under a limit of 200 MB).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from userdp.core.errors import FailureError, UseError, kind_of
from userdp.data.records import BLOCK, BLOCK_BYTES, bounds_by_size, offsets_of

MEMORY_LIMIT = "1GB"
_SIZE = re.compile(r"([1-9]\d{0,8}(?:\.\d+)?)\s?([KMGT])(i?)B", re.IGNORECASE)
_ROWS = pa.schema([field for field in BLOCK if field.name != "text"])
"""What is sorted: of a text its place tells where it lies."""
_SORT = 'SELECT * FROM records ORDER BY "user", place'
_FETCH = 2**14
"""Rows for which the spool is mapped at once: mapped pages count as ours (RSS), though the system
may take them back, and Linux maps 64 kB around each text, so these are 1 GB at most."""
RECORDS_AT_ONCE = 2**12


class GroupingEngine(StrEnum):
    """What brings each user's records together: DuckDB on one machine, or Apache Spark."""

    DUCKDB = "duckdb"
    SPARK = "spark"


def size_in_bytes(size: str) -> int:
    """A size in DuckDB's words as a number; `UseError` if it is none.

    >>> size_in_bytes("1GB"), size_in_bytes("1.5 KiB")
    (1000000000, 1536)
    """
    match = _SIZE.fullmatch(size)
    if match is None:
        raise UseError(
            f"memory_limit must be a size such as 1GB, got {size!r}",
            hint="a number and one of KB, MB, GB, TB",
        )
    number, unit, binary = match.groups()
    step = 1024 if binary else 1000
    return int(float(number) * step ** ("KMGT".index(unit.upper()) + 1))


class Grouping:
    """Records in (`add`, `sort`), the same out ordered by (user bytes, place) (`batches`).

    Peak memory is about ``memory_limit`` plus some blocks of records, whatever their number (and up
    to 1 GB of the spool that the system may take back at any time).

    Args:
        folder: for the working files, about the size of the text and 100 bytes per record.
        memory_limit: in DuckDB's words, e.g. "1GB".

    Raises:
        UseError: ``memory_limit`` is no size.
        FailureError: here and later, when the disk is full or the limit too small.
    """

    def __init__(self, folder: Path, *, memory_limit: str = MEMORY_LIMIT) -> None:
        size_in_bytes(memory_limit)
        self._memory_limit = memory_limit
        self._rows, self._spill = folder / "rows.arrow", folder / "spill"
        self._spool, self._offsets = folder / "texts", folder / "offsets"
        self._sorted = folder / "sorted.arrow"

    def add(self, blocks: Iterable[pa.RecordBatch]) -> None:
        """Take in all records of ``blocks``."""
        end = 0
        with (
            self._spool.open("wb", buffering=2**20) as texts,
            self._offsets.open("wb") as offsets,
            pa.OSFile(str(self._rows), "wb") as file,
            pa.ipc.new_stream(file, _ROWS) as rows,
        ):
            offsets.write(bytes(8))
            for block in blocks:
                begins = offsets_of(block["text"])
                texts.write(memoryview(block["text"].buffers()[2])[begins[0] : begins[-1]])
                offsets.write((begins[1:] - begins[0] + end).data)
                rows.write_batch(block.select(_ROWS.names))
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
                    batches = database.sql(_SORT).to_arrow_reader(_FETCH)
                    with pa.ipc.new_stream(out, _ROWS) as sink:
                        for batch in batches:
                            sink.write_batch(batch)
        except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
            raise _explained(error) from error
        self._rows.unlink()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All records by (user bytes, place), in blocks."""
        with pa.OSFile(str(self._sorted)) as file:
            for rows in pa.ipc.open_stream(file):
                texts = self._texts()
                place, offsets = rows["place"].to_numpy(), offsets_of(texts)
                sizes = offsets[place + 1] - offsets[place]
                for begin, end in bounds_by_size(sizes, records=RECORDS_AT_ONCE, size=BLOCK_BYTES):
                    own = rows.slice(begin, end - begin)
                    yield own.append_column("text", texts.take(own["place"])).select(BLOCK.names)

    def _texts(self) -> pa.LargeBinaryArray:
        """All texts by place, over a memory map."""
        with pa.memory_map(str(self._offsets)) as offsets, pa.memory_map(str(self._spool)) as spool:
            buffers = [None, offsets.read_buffer(), spool.read_buffer()]
        records = self._offsets.stat().st_size // 8 - 1
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), records, buffers)


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
        hint="is the disk full, or memory_limit too small? Working files lie beside the store "
        "and are as large as the text",
    )
