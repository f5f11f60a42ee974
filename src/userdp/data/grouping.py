"""Bring each user's records together in bounded memory, on one machine: DuckDB, out of core.

DuckDB sorts rows in vectors of 2,048 and must hold a vector, so a few very long records would
break its memory limit. Texts longer than `_LONG` therefore wait in a plain file, and DuckDB
sorts where they lie.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

import duckdb
import pyarrow as pa

from userdp.data.records import Record
from userdp.errors import FailureError, UseError

MEMORY_LIMIT = "1GB"
_SIZE = re.compile(r"[1-9]\d{0,8}(\.\d+)?\s?[KMGT]i?B", re.IGNORECASE)
_LONG = 2**14
_BATCH_RECORDS = 8192
_BATCH_BYTES = 2**23
_SCHEMA = pa.schema(
    [
        ("user", pa.large_binary()),
        ("place", pa.int64()),
        ("text", pa.large_binary()),
        ("long_start", pa.int64()),
        ("long_size", pa.int64()),
    ]
)
_CREATE = """CREATE TABLE records
    ("user" BLOB, place BIGINT, text BLOB, long_start BIGINT, long_size BIGINT)"""
_SORTED = """SELECT "user", text, place, long_start, long_size FROM records
    ORDER BY "user", place"""


class Grouping:
    """Records in, the same records out ordered by (user bytes, order).

    A context manager. Peak memory is about ``memory_limit`` plus one batch of records, whatever
    their number; the rest lies in ``folder``.

    Args:
        folder: for the working files, which need about twice the size of the text uncompressed;
            whoever made it removes it.
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
        self._long = (folder / "long.texts").open("w+b")

    def add(self, records: Iterable[Record]) -> int:
        """Take in all of ``records``; return how many they were."""
        added = size = 0
        batch: list[tuple[bytes, int, bytes | None, int | None, int | None]] = []
        for user, text, place in records:
            if len(text) > _LONG:
                batch.append((user, place, None, self._long.tell(), len(text)))
                self._long.write(text)
            else:
                batch.append((user, place, text, None, None))
                size += len(text)
            size += len(user)
            if len(batch) == _BATCH_RECORDS or size >= _BATCH_BYTES:
                added += self._insert(batch)
                batch, size = [], 0
        return added + self._insert(batch)

    def _insert(self, batch: list[tuple[bytes, int, bytes | None, int | None, int | None]]) -> int:
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
        self._long.flush()
        try:
            result = self._database.execute(_SORTED)
            batch, held = [], 0
            while rows := result.fetchmany(records):
                for user, text, place, start, length in rows:
                    whole = text if text is not None else self._read_long(start, length)
                    batch.append(Record(user, whole, place))
                    held += len(whole)
                    if len(batch) == records or held >= size:
                        yield batch
                        batch, held = [], 0
            if batch:
                yield batch
        except duckdb.Error as error:
            raise _failure(error) from error

    def _read_long(self, start: int, size: int) -> bytes:
        self._long.seek(start)
        return self._long.read(size)

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
            self._long.close()
        except (duckdb.Error, OSError) as problem:  # what was buffered meets a full disk here
            if error is None:
                raise _failure(problem) from problem


def _failure(error: duckdb.Error | OSError) -> FailureError:
    first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return FailureError(
        f"grouping records by user failed: {first_line}",
        hint="is the disk full, or memory_limit too small? Working files lie beside the store "
        "and take about twice the text's size",
    )
