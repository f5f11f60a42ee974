"""Bring each user's records together in bounded memory, on one machine: DuckDB, out of core.

Texts wait in one plain file (the spool); DuckDB sorts where they lie, by (user bytes, order). Its
sort of short rows stays within the memory limit at any number of rows; with the texts inside it
does not (measured with DuckDB 2.0: 400 MB of 1 kB texts fail under a limit of 200 MB).
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from userdp.data.columns import (
    BLOCK_BYTES,
    Columns,
    bounds_by_size,
    bytes_of,
    large_binary,
    offsets_of,
)
from userdp.errors import FailureError, UseError, kind_of

MEMORY_LIMIT = "1GB"
_SIZE = re.compile(r"([1-9]\d{0,8}(?:\.\d+)?)\s?([KMGT])(i?)B", re.IGNORECASE)
_SCHEMA = pa.schema(
    [
        ("user", pa.large_binary()),
        ("place", pa.int64()),
        ("start", pa.int64()),
        ("size", pa.int64()),
        ("marks", pa.int64()),  # 1 for held out, plus twice the bytes of the pieces after the text
    ]
)
_SORTED = 'SELECT "user", place, start, size, marks FROM records ORDER BY "user", place'
_FETCH = 2**15
_MAPPED_MOST = 2**30
_MAPPED_AT_ONCE = 2**16
"""Linux maps up to so many bytes around one that is touched."""


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


class Grouping(AbstractContextManager["Grouping"]):
    """Records in, the same records out ordered by (user bytes, order).

    A context manager; `add` is called once, then `batches`. Peak memory is about ``memory_limit``
    plus some blocks of records, whatever their number (and up to 1 GB of the spool that the
    system may take back at any time); the rest lies in ``folder``.

    A record's owners do not come through: who they are is settled before (`ownership`).

    Args:
        folder: for the working files, about the size of the text uncompressed and 100 bytes per
            record; whoever made it removes it.
        memory_limit: in DuckDB's words, e.g. "1GB".

    Raises:
        UseError: ``memory_limit`` is no size.
        FailureError: here and later, when the disk is full or the limit too small.
    """

    def __init__(self, folder: Path, *, memory_limit: str = MEMORY_LIMIT) -> None:
        size_in_bytes(memory_limit)
        folder.mkdir(parents=True, exist_ok=True)
        self._rows, self._sorted = folder / "rows.arrow", folder / "sorted.arrow"
        self._spool = folder / "texts"
        try:
            self._database = duckdb.connect(
                ":memory:",
                config={
                    "memory_limit": memory_limit,
                    "temp_directory": str(folder / "spill"),
                    "threads": 2,
                    "preserve_insertion_order": False,
                },
            )
            shows = self._database.execute("SELECT current_setting('enable_progress_bar')")
            if shows.fetchone() != (False,):  # a notebook without widgets refuses to hear of it
                self._database.execute("SET enable_progress_bar = false")
            self._database.execute("SET arrow_large_buffer_size = true")
        except (duckdb.Error, RuntimeError) as error:
            raise _told(error) from error

    def add(self, blocks: Iterable[Columns]) -> int:
        """Take in all records of ``blocks``; return how many they were."""
        added = end = 0
        with (
            self._spool.open("wb", buffering=2**20) as texts,
            pa.OSFile(str(self._rows), "wb") as file,
            pa.ipc.new_stream(file, _SCHEMA) as rows,
        ):
            for block in blocks:
                if len(block):
                    batch, content = _rows_of(block, end)
                    texts.write(content.data)
                    rows.write_batch(batch)
                    end += len(content)
                    added += len(block)
        return added

    def sort(self) -> None:
        """Sort where the texts lie; `batches` does it if nobody did."""
        partial = self._sorted.with_name("sorted.partial")
        try:
            with pa.OSFile(str(self._rows)) as file:
                self._database.register("records", pa.ipc.open_stream(file))
                reader = self._database.sql(_SORTED).to_arrow_reader(_FETCH)
                with (
                    pa.OSFile(str(partial), "wb") as out,
                    pa.ipc.new_stream(out, _SCHEMA) as sink,
                ):
                    for batch in reader:
                        sink.write_batch(batch)
                self._database.unregister("records")
        except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
            raise _told(error) from error
        self._database.close()  # what it holds in memory is not needed any more
        partial.rename(self._sorted)
        self._rows.unlink()

    @property
    def files(self) -> list[Path]:
        """What `batches` reads, once `sort` is done."""
        return [self._spool, self._sorted]

    def batches(
        self, *, skip: int = 0, records: int = 4096, size: int = BLOCK_BYTES
    ) -> Iterator[Columns]:
        """All records by (user bytes, order).

        Args:
            skip: how many to leave out.
            records: at most this many at a time,
            size: and no more once their texts have this many bytes.
        """
        if not self._sorted.exists():
            self.sort()
        spool = _Spool(self._spool)
        with pa.OSFile(str(self._sorted)) as file:
            for whole in pa.ipc.open_stream(file):
                batch = whole.slice(min(skip, len(whole)))
                skip -= len(whole) - len(batch)
                users, (place, start, length, marks) = batch.column(0), _numbers(batch)
                spool.expect(start, length + marks // 2)
                for begin, end in bounds_by_size(length, records=records, size=size):
                    part = slice(begin, end)
                    extra = marks[part] // 2
                    yield Columns(
                        users.slice(begin, end - begin),
                        spool.texts(start[part], length[part]),
                        place[part],
                        marks[part] % 2 == 1,
                        spool.texts(start[part] + length[part], extra) if extra.any() else None,
                    )

    def __exit__(self, *_: object) -> None:
        self._database.close()


def _rows_of(block: Columns, end: int) -> tuple[pa.RecordBatch, NDArray[np.uint8]]:
    """The rows to sort, and what the spool gets, of which it holds ``end`` bytes so far."""
    sizes = np.diff(offsets_of(block.texts))
    marks = block.held_out.astype(np.int64)
    content = block.texts
    if block.pieces is not None:  # each record's behind its text
        marks += 2 * np.diff(offsets_of(block.pieces))
        content = pc.binary_join_element_wise(
            block.texts, block.pieces, pa.scalar(b"", pa.large_binary())
        )
    offsets = offsets_of(content)
    starts = offsets[:-1] + (end - offsets[0])
    columns = [block.users, *map(pa.array, (block.orders, starts, sizes, marks))]
    batch = pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
    return batch, bytes_of(content)[offsets[0] : offsets[-1]]


def _numbers(batch: pa.RecordBatch) -> list[NDArray[np.int64]]:
    return [column.to_numpy(zero_copy_only=True) for column in batch.columns[1:]]


class _Spool:
    """The texts, mapped into memory; what was read is let go of now and then.

    Mapped pages count as ours (RSS) though the system may take them back; so no more than
    `_MAPPED_MOST` of them are kept mapped.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._size = os.fstat(self._file.fileno()).st_size
        # Of a spool that memory cannot hold, the disk may answer many reads at a time.
        self._ahead = self._size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        self._read = 0
        if self._size:
            self._map = mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ)
            buffer: Any = pa.py_buffer(self._map)
            self._values = pa.Array.from_buffers(pa.uint8(), self._size, [None, buffer])
        else:
            self._values = pa.array([], pa.uint8())

    def expect(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """What will be read soon; `FailureError` if it is not all there."""
        if len(starts) and int((starts + sizes).max()) > self._size:
            raise FailureError("a working file of the grouping stage was cut short")
        if self._ahead:
            number = self._file.fileno()
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
                os.posix_fadvise(number, start, size, os.POSIX_FADV_WILLNEED)

    def texts(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> pa.LargeBinaryArray:
        """A copy of the bytes from each start on."""
        self._read += len(starts) * _MAPPED_AT_ONCE + int(sizes.sum())
        if self._read > _MAPPED_MOST and self._size > _MAPPED_MOST:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._read = 0
        lists = pa.LargeListViewArray.from_arrays(
            pa.array(starts), pa.array(sizes), self._values
        ).flatten()
        flat = lists.buffers()[1]
        values = pa.py_buffer(b"") if flat is None else flat.slice(lists.offset, len(lists))
        offsets = np.zeros(len(starts) + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:])
        return large_binary(offsets, values)


def _is_interrupt(error: Exception) -> bool:
    """Whether the database tells of a Ctrl-C, or of a signal that was to do the same, in its words.

    While it computes it asks Python for signals, and replaces the exception of their handler.
    """
    if isinstance(error, duckdb.InterruptException):
        return True
    return any(words in str(error) for words in ("Query interrupted", "KeyboardInterrupt"))


def _told(error: Exception) -> BaseException:
    """What an error of the database, or of the files it reads, is called here."""
    if _is_interrupt(error):
        return KeyboardInterrupt()
    if isinstance(error, duckdb.Error | pa.ArrowException | OSError):
        return _failure(error)
    return error


def _failure(error: duckdb.Error | pa.ArrowException | OSError) -> FailureError:
    return FailureError(
        f"grouping records by user failed: {kind_of(error)}",
        hint="is the disk full, or memory_limit too small? Working files lie beside the store "
        "and are as large as the text",
    )
