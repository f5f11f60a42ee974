"""Bring each user's records together in bounded memory, on one machine: DuckDB, out of core.

Texts wait in one plain file; DuckDB sorts where they lie, by (user bytes, order). Its sort of short
rows stays within the memory limit at any number of rows; with the texts inside it does not
(measured with DuckDB 2.0: 400 MB of 1 kB texts fail under a limit of 200 MB).
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType

import duckdb
import pyarrow as pa

from userdp.data.records import Record
from userdp.errors import FailureError, UseError

MEMORY_LIMIT = "1GB"
_SIZE = re.compile(r"[1-9]\d{0,8}(\.\d+)?\s?[KMGT]i?B", re.IGNORECASE)
_BATCH_RECORDS = 2**15
_BATCH_BYTES = 2**23
_SCHEMA = pa.schema(
    [
        ("user", pa.large_binary()),
        ("place", pa.int64()),
        ("start", pa.int64()),
        ("size", pa.int64()),
        ("marks", pa.int64()),
    ]
)
_CREATE = (
    'CREATE TABLE records ("user" BLOB, place BIGINT, start BIGINT, size BIGINT, marks BIGINT)'
)
_SORTED = 'SELECT "user", place, start, size, marks FROM records ORDER BY "user", place'
_Row = tuple[bytes, int, int, int, int]
_AHEAD_FROM = 2**31
_FETCH = 2**13


class Grouping:
    """Records in, the same records out ordered by (user bytes, order).

    A context manager; `add` is called once. Peak memory is about ``memory_limit`` plus one batch
    of records, whatever their number; the rest lies in ``folder``.

    A record's owners do not come through: who they are is settled before (`ownership`).

    Args:
        folder: for the working files, about the size of the text uncompressed; whoever made it
            removes it.
        memory_limit: in DuckDB's words, e.g. "1GB".

    Raises:
        UseError: ``memory_limit`` is no size.
        FailureError: here and later, when the disk is full or the limit too small.
    """

    def __init__(self, folder: Path, *, memory_limit: str = MEMORY_LIMIT) -> None:
        if not _SIZE.fullmatch(memory_limit):
            raise UseError(
                f"memory_limit must be a size such as 1GB, got {memory_limit!r}",
                hint="a number and one of KB, MB, GB, TB",
            )
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._database = duckdb.connect(
                str(folder / "records.duckdb"),
                config={
                    "memory_limit": memory_limit,
                    "temp_directory": str(folder / "spill"),
                    "threads": 2,
                    "preserve_insertion_order": False,
                },
            )
            self._database.execute("SET enable_progress_bar = false")
            self._database.execute(_CREATE)
        except duckdb.Error as error:
            raise _failure(error) from error
        self._texts = (folder / "texts").open("w+b", buffering=2**20)

    def add(self, records: Iterable[Record]) -> int:
        """Take in all of ``records``; return how many they were."""
        added = end = size = 0
        batch: list[_Row] = []
        for record in records:
            user, text = record.user, record.text
            marks = int(record.held_out)
            if record.pieces is not None:
                pieces = struct.pack(f"<{2 * len(record.pieces)}q", *chain(*record.pieces))
                marks += 2 * len(pieces)
            batch.append((user, record.order, end, len(text), marks))
            self._texts.write(text)
            if record.pieces is not None:
                self._texts.write(pieces)
            end += len(text) + marks // 2
            size += len(user)
            if len(batch) == _BATCH_RECORDS or size >= _BATCH_BYTES:
                added += self._insert(batch)
                batch, size = [], 0
        return added + self._insert(batch)

    def _insert(self, batch: list[_Row]) -> int:
        if not batch:
            return 0
        columns = [
            pa.array(column, kind)
            for column, kind in zip(zip(*batch, strict=True), _SCHEMA.types, strict=True)
        ]
        try:
            self._database.register("batch", pa.Table.from_arrays(columns, schema=_SCHEMA))
            self._database.execute("INSERT INTO records SELECT * FROM batch")
            self._database.unregister("batch")
        except duckdb.Error as error:
            raise _failure(error) from error
        return len(batch)

    def batches(self, *, records: int = 1024, size: int = _BATCH_BYTES) -> Iterator[list[Record]]:
        """All records by (user bytes, order).

        Args:
            records: at most this many at a time,
            size: and no more once their texts have this many bytes.
        """
        self._texts.flush()
        file = self._texts.fileno()
        ahead = os.fstat(file).st_size > _AHEAD_FROM
        try:
            result = self._database.execute(_SORTED)
            batch: list[Record] = []
            held = 0
            while rows := result.fetchmany(max(records, _FETCH)):
                if ahead:  # the disk may answer many at a time
                    for _, _, start, length, marks in rows:
                        os.posix_fadvise(file, start, length + marks // 2, os.POSIX_FADV_WILLNEED)
                for user, place, start, length, marks in rows:
                    if marks <= 1:
                        text = _read(file, start, length)
                        batch.append(Record(user, text, place, marks == 1))
                    else:
                        both = _read(file, start, length + marks // 2)
                        text, pieces = both[:length], _pieces(both[length:])
                        batch.append(Record(user, text, place, marks % 2 == 1, pieces))
                    held += length
                    if len(batch) == records or held >= size:
                        yield batch
                        batch, held = [], 0
            if batch:
                yield batch
        except duckdb.Error as error:
            raise _failure(error) from error

    def __enter__(self) -> Grouping:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._database.close()
            self._texts.close()
        except (duckdb.Error, OSError) as problem:  # what was buffered meets a full disk here
            if error is None:
                raise _failure(problem) from problem


def _pieces(content: bytes) -> tuple[tuple[int, int], ...]:
    numbers = struct.unpack(f"<{len(content) // 8}q", content)
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _read(file: int, start: int, size: int) -> bytes:
    """All ``size`` bytes from ``start``: one call of `os.pread` may give fewer."""
    text = os.pread(file, size, start)
    while len(text) < size:
        more = os.pread(file, size - len(text), start + len(text))
        if not more:
            raise FailureError("a working file of the grouping stage was cut short")
        text += more
    return text


def _failure(error: duckdb.Error | OSError) -> FailureError:
    first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return FailureError(
        f"grouping records by user failed: {first_line}",
        hint="is the disk full, or memory_limit too small? Working files lie beside the store "
        "and are as large as the text",
    )
