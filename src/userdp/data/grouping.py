"""Bring each user's records together in bounded memory, on one machine: DuckDB, out of core."""

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
_BATCH_RECORDS = 8192
_BATCH_BYTES = 2**24
_SCHEMA = pa.schema(
    [("user", pa.large_binary()), ("place", pa.int64()), ("text", pa.large_binary())]
)


class Grouping:
    """Records in, the same records out ordered by (user bytes, order).

    A context manager: its files are gone when it closes. Peak memory is about ``memory_limit``
    plus one batch, whatever the number of records; the rest lies in ``folder``.

    Args:
        folder: for the working files; needs about the size of the text, uncompressed, twice.
        memory_limit: in DuckDB's words, e.g. "1GB".
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
            self._database.execute('CREATE TABLE records ("user" BLOB, place BIGINT, text BLOB)')
        except duckdb.Error as error:
            raise _failure(error) from error

    def add(self, records: Iterable[Record]) -> int:
        """Take in all of ``records``; return how many they were."""
        added = size = 0
        batch: list[Record] = []
        for record in records:
            batch.append(record)
            size += len(record.text) + len(record.user)
            if len(batch) == _BATCH_RECORDS or size >= _BATCH_BYTES:
                added += self._insert(batch)
                batch, size = [], 0
        return added + self._insert(batch)

    def _insert(self, batch: list[Record]) -> int:
        if not batch:
            return 0
        users, texts, places = zip(*batch, strict=True)
        table = pa.Table.from_arrays(
            [
                pa.array(users, pa.large_binary()),
                pa.array(places, pa.int64()),
                pa.array(texts, pa.large_binary()),
            ],
            schema=_SCHEMA,
        )
        try:
            self._database.register("batch", table)
            self._database.execute("INSERT INTO records SELECT * FROM batch")
            self._database.unregister("batch")
        except duckdb.Error as error:
            raise _failure(error) from error
        return len(batch)

    def batches(self, records: int = 1024) -> Iterator[list[Record]]:
        """All records by (user bytes, order), at most ``records`` at a time."""
        query = 'SELECT "user", text, place FROM records ORDER BY "user", place'
        try:
            result = self._database.execute(query)
            while rows := result.fetchmany(records):
                yield [Record(*row) for row in rows]
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
        except duckdb.Error as problem:  # a full disk also shows when the last pages are written
            if error is None:
                raise _failure(problem) from problem


def _failure(error: duckdb.Error) -> FailureError:
    first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return FailureError(
        f"grouping records by user failed: {first_line}",
        hint="is the disk full? Working files lie beside the store, about twice the text's size",
    )
