"""The two jobs of a `prepare` with Spark, as the process sees them that started it."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from userdp.data.columns import Columns
from userdp.data.grouping import MEMORY_LIMIT, size_in_bytes
from userdp.data.parts import Part, PartJob, done_in, parts_in
from userdp.data.progress import NoProgress, Progress
from userdp.data.records import Tally
from userdp.data.sources.seen_fields import SeenFields
from userdp.data.sources.table import FileTable
from userdp.data.spark.records import READ_AS, write_records
from userdp.data.spark.session import LEAST_HEAP, failure, quiet, require_spark, session, told
from userdp.data.spark.tasks import RESULT, ShardBooks, error_of, reading, results, writing
from userdp.errors import UseError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHARD_BYTES = 2**26
_PART_BYTES, _LEAST_PART_BYTES = 2**25, 2**21
"""Of working files, which are compressed: some 100 MB of text, and 6 MB."""
_PARTS_PER_CORE = 4
"""So that cores wait little for the last part."""

_BY = ("user",)
_ORDER = ("user", "place")
_PATTERN = re.compile(r"([{}\[\]*?\\])")
"""What Spark would take for a pattern in a path that it reads."""


class SparkJob(AbstractContextManager["SparkJob"]):
    """Records in, parts of a store out; Spark runs while the block does.

    Spark runs where ``SPARK_CONF_DIR`` or ``PYSPARK_SUBMIT_ARGS`` say, else in local mode. On a
    cluster ``folder`` and the source's files must lie where all its machines see them.

    Memory of this process is that of the parts' indices. That of Spark is ``memory_limit`` in local
    mode (at least 512 MB, below which it does not start), or what its configuration says; besides,
    each core has a Python process that holds some blocks of records.

    Args:
        folder: for the working files, some twice the size of the text compressed, and Spark's
            spill; whoever made it removes it.
        memory_limit: of Spark's driver, e.g. "1GB".
        progress: is told how far the job is.

    Raises:
        UseError: ``memory_limit`` is no size, ``folder`` has a colon; pyspark or Java is missing.
        FailureError: here and later, when the disk is full or Spark ends.
    """

    def __init__(
        self,
        folder: Path,
        *,
        memory_limit: str = MEMORY_LIMIT,
        progress: Progress | None = None,
    ) -> None:
        self._heap = max(size_in_bytes(memory_limit), LEAST_HEAP)
        require_spark()
        self._folder = folder.resolve()
        if ":" in str(self._folder):
            raise UseError(
                f"Spark cannot read or write {self._folder}: its paths may not have a colon",
                hint="choose another --out, or leave out --engine spark",
            )
        self._progress = progress or NoProgress()
        self._records = self._folder / "records"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        spark = session(self._folder / "spill", heap=self._heap)
        self._spark: SparkSession = self._stack.enter_context(spark)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

    @property
    def files(self) -> list[Path]:
        """What `write` reads, once `read` or `spool` is done."""
        return sorted(self._records.glob("[!.]*"))

    def spool(self, blocks: Iterable[Columns]) -> int:
        """Take in records that only this process can read, one after another; return how many."""
        self._begin()
        try:
            return write_records(self._records, "records", blocks)
        except pa.ArrowException as error:
            raise failure(error) from error

    def read(self, tables: Sequence[FileTable], tally: Tally) -> tuple[int, int]:
        """Take in the records of ``tables``, a shard a task.

        Guarantee: the books, and what is refused with which words, are those of reading the tables
        one after another. A record goes to its first owner. Files are found from where this process
        is now, wherever Spark was started, and told of by their absolute paths.

        Returns:
            How many records were kept, and how many of them had several owners.
        """
        self._begin()
        # Spark's Java stays in the folder that it began in, and so do those that it starts: there
        # they would find another file of that name, or none.
        found = [replace(one, paths=tuple(path.absolute() for path in one.paths)) for one in tables]
        shards = [(n, shard) for n, one in enumerate(found) for shard in one.shards(_SHARD_BYTES)]
        with told():
            numbers = self._spark.range(0, len(shards), 1, numPartitions=len(shards))
        task = reading([shard for _, shard in shards], self._records)
        self._progress.stage("reading", len(shards))
        rows = self._run(numbers, task, self._shards_read, len(shards))
        books = [ShardBooks.of(facts) for facts in results(rows)]
        for number, table in enumerate(tables):
            seen = SeenFields(table.parser.required)
            for (of, _), one in zip(shards, books, strict=True):
                if of == number:
                    tally.add(one.tally)
                    seen.join(one.seen)
                    if one.error is not None:
                        raise one.error
            seen.require()
        return sum(one.kept for one in books), sum(one.several for one in books)

    def write(self, job: PartJob) -> Iterator[Part]:
        """Bring users' records together, and write them as parts of a store.

        A part that an earlier run of the same job finished is not written again.
        """
        if not self.files:
            return iter(())
        count = self._parts(sum(file.stat().st_size for file in self.files))
        folder = self._folder / f"parts-{count}"
        folder.mkdir(exist_ok=True)
        path = _PATTERN.sub(r"\\\1", str(self._records))
        with told():
            records = self._spark.read.schema(READ_AS).parquet(path)
            ordered = records.repartition(count, *_BY).sortWithinPartitions(*_ORDER)
        self._progress.stage("tokenizing", count)
        rows = self._run(ordered, writing(folder, job), lambda: done_in(folder), count)
        for facts in results(rows):
            error = error_of(facts)
            if error is not None:
                raise error
        return iter(parts_in(folder))

    def _shards_read(self) -> int:
        return len({file.name.partition("-")[0] for file in self.files})

    def _begin(self) -> None:
        shutil.rmtree(self._records, ignore_errors=True)
        self._records.mkdir()

    def _parts(self, size: int) -> int:
        """How many parts a store of so many bytes of working files is written in."""
        with told():
            cores = self._spark.sparkContext.defaultParallelism
        wanted = max(-(-size // _PART_BYTES), _PARTS_PER_CORE * cores)
        return max(1, min(wanted, -(-size // _LEAST_PART_BYTES)))

    def _run(
        self, rows: DataFrame, task: Callable[..., Any], done: Callable[[], int], total: int
    ) -> list[Any]:
        """The results of ``task`` over the partitions of ``rows``, in their order."""
        with _Watch(self._progress, done, total), quiet(), told():
            return rows.mapInArrow(task, RESULT).collect()


class _Watch(AbstractContextManager[None]):
    """Tells how far a job is, by the files that there are, while the caller waits for it."""

    def __init__(self, progress: Progress, done: Callable[[], int], total: int) -> None:
        self._progress, self._done, self._total = progress, done, total
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="spark progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            self._progress.at(min(self._done(), self._total))
