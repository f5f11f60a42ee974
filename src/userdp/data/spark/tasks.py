"""What runs on Spark's executors: a task reads a shard, or writes a part.

What is wrong with the input is wrong at every attempt: it comes back as a result, and this side
raises it. Every other error is left to Spark, which tries the task again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from userdp.data.ownership import FirstOwner
from userdp.data.parts import PartJob, write_part
from userdp.data.progress import NoProgress
from userdp.data.records import Tally
from userdp.data.sources.seen_fields import SeenFields
from userdp.data.sources.table import FileTable
from userdp.data.spark.records import columns_of, write_records
from userdp.errors import FailureError, UseError, UserdpError

MOST_ROWS = 2**40
"""Of a shard: its number and a row's number in it make one number that orders all records."""

RESULT = "result STRING"
Batches = Iterable[pa.RecordBatch]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardBooks:
    """What is to be known of a shard that was read.

    Args:
        kept: records that were written.
        several: of them with several owners.
        tally: `Tally.facts` of the shard.
        seen: the fields of its rows.
        error: why it could not be read to its end.
    """

    kept: int
    several: int
    tally: dict[str, Any]
    seen: SeenFields
    error: UserdpError | None

    def facts(self) -> dict[str, Any]:
        """All of it, as plain values."""
        return {
            "kept": self.kept,
            "several": self.several,
            "tally": self.tally,
            "seen": self.seen.facts(),
            "error": _told(self.error),
        }

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> ShardBooks:
        """Those whose `facts` these are."""
        return cls(
            kept=facts["kept"],
            several=facts["several"],
            tally=facts["tally"],
            seen=SeenFields.of(facts["seen"]),
            error=error_of(facts["error"]),
        )


def reading(shards: Sequence[FileTable], folder: Path) -> Callable[[Batches], Batches]:
    """What reads the shards whose numbers it is given into ``folder``; results are `ShardBooks`."""

    def task(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield _result(_read(shards[number], number, folder).facts())

    return task


def writing(folder: Path, job: PartJob) -> Callable[[Batches], Batches]:
    """What writes a partition of records as a part into ``folder``; results are errors, or None."""

    def task(batches: Batches) -> Batches:
        from pyspark import TaskContext

        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a task for each core
        context = TaskContext.get()
        assert context is not None
        error = None
        try:
            write_part(columns_of(batches), folder / f"{context.partitionId():06d}", job)
        except UserdpError as refused:
            error = refused
        yield _result(_told(error))

    return task


def results(rows: Iterable[Any]) -> Iterator[Any]:
    """What the tasks gave back, from the rows that Spark collected; JSON, which runs no code."""
    return (json.loads(row[0]) for row in rows)


def error_of(told: Mapping[str, Any] | None) -> UserdpError | None:
    """The error that a task gave back."""
    if told is None:
        return None
    kind = UseError if told["use"] else FailureError
    return kind(told["message"], hint=told["hint"])


def _told(error: UserdpError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    use = isinstance(error, UseError)
    return {"use": use, "message": error.message, "hint": error.hint}


def _read(table: FileTable, number: int, folder: Path) -> ShardBooks:
    tally, seen = Tally(), SeenFields(table.parser.required)
    blocks = table.part_blocks(tally, NoProgress(), seen)
    owners = FirstOwner(tally)
    if table.several_owners:
        blocks = map(owners, blocks)
    kept, error = 0, None
    try:
        kept = write_records(folder, f"{number:06d}", blocks, first=number * MOST_ROWS)
    except UserdpError as refused:
        error = refused
    return ShardBooks(
        kept=kept, several=owners.several, tally=tally.facts(), seen=seen, error=error
    )


def _result(value: Any) -> pa.RecordBatch:
    content = pa.array([json.dumps(value)], pa.string())
    return pa.RecordBatch.from_arrays([content], names=["result"])
