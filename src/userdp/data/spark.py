"""Bring each user's records together with Apache Spark: what DuckDB does, on many machines.

Two jobs. The first reads the source, a file per task, into working files of records. The second
brings each user's records together, and one task per partition of users tokenizes them into working
files. This process reads no text: it adds up books, and writes the tokens by the one writer.

An attempt of a task writes under a name of its own, and only what a successful one gives back is
used; nothing of a job counts until `StoreWriter.finish`. A task that fails, or whose process is
killed, is tried again by Spark, and writes the same. What is wrong with the input is wrong at every
attempt: it comes back as a result, and this side raises it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from userdp.core.errors import FailureError, UseError, UserdpError, kind_of
from userdp.core.extras import library
from userdp.data.examples import tokenized
from userdp.data.grouping import MEMORY_LIMIT, size_in_bytes
from userdp.data.progress import NoProgress, Progress
from userdp.data.records import (
    BLOCK,
    BLOCK_BYTES,
    Tally,
    bounds_by_size,
    in_blocks,
    offsets_of,
)
from userdp.data.sources.table import FileTable
from userdp.data.tokenize import StoreTokenizer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PART_BYTES, _LEAST_PART_BYTES = 2**25, 2**21
"""Of working files, which are compressed: some 100 MB of text, and 6 MB."""
_PARTS_PER_CORE = 4
"""So that cores wait little for the last part."""
_BY, _ORDER = ("user",), ("user", "place")
_MOST_ROWS = 2**40
"""Of a file: its number and a row's number in it make one number that orders all records."""
_FILE_BYTES = 2**28
"""Before compression."""
_RECORDS_AT_ONCE = 2**12

_READ_AS = "`user` BINARY, place BIGINT, text BINARY, held_out BOOLEAN, pieces BINARY"
"""`BLOCK` in Spark's words."""
_RESULT = "result STRING"
_PATTERN = re.compile(r"([{}\[\]*?\\])")
"""What Spark would take for a pattern in a path that it reads."""
_Batches = Iterator[pa.RecordBatch]


class SparkJob(AbstractContextManager["SparkJob"]):
    """Records in, tokens out by user; Spark runs while the block does.

    Spark runs where ``SPARK_CONF_DIR`` or ``PYSPARK_SUBMIT_ARGS`` say, else in local mode. On a
    cluster ``folder`` and the source's files must lie where all its machines see them.

    That of this process holds a block of tokens. That of Spark is ``memory_limit`` in local
    mode (at least 512 MB, below which it does not start), or what its configuration says; besides,
    each core has a Python process that holds some blocks of records.

    Args:
        folder: for the working files, some thrice the size of the text compressed, and Spark's
            spill; whoever made it removes it.
        memory_limit: of Spark's driver, e.g. "1GB".
        progress: is told in which stage the job is; Spark's own page shows how far.

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
        self._records.mkdir(parents=True, exist_ok=True)
        spark = session(self._folder / "spill", heap=self._heap)
        self._spark: SparkSession = self._stack.enter_context(spark)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

    @property
    def files(self) -> list[Path]:
        """What `tokens` reads, once `read` or `add` is done."""
        return sorted(self._records.iterdir())

    def add(self, blocks: _Batches) -> None:
        """Take in records that only this process can read, one after another."""
        with told(pa.ArrowException):
            _write_blocks(self._records, blocks)

    def read(self, table: FileTable, tally: Tally) -> None:
        """Take in the records of a table, a file a task.

        Guarantee: the books, and what is refused with which words, are those of reading the files
        one after another. A record goes to its first owner. Files are found from where this process
        is now, wherever Spark was started, and told of by their absolute paths.
        """
        # Spark's Java stays in the folder that it began in, and so do those that it starts: there
        # they would find another file of that name, or none.
        table = replace(table, paths=tuple(path.absolute() for path in table.paths))
        files = list(table.each())
        with told():
            numbers = self._spark.range(0, len(files), 1, numPartitions=len(files))
        self._progress.stage("reading", None)
        books = self._run(numbers, _reading(files, self._records))
        for book in books:
            tally.add(book["tally"])
            _raise(book)
        table.check(tally)
        written = {name for book in books for name in book["files"]}
        for file in self.files:
            if file.name not in written:  # of an attempt that failed
                file.unlink()

    def tokens(self, tokenizer: StoreTokenizer, *, loss_mask: bool) -> _Batches:
        """Bring users' records together: what `tokenized` makes of them, user after user."""
        if not self.files:
            return
        folder = self._folder / "tokens"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        path = _PATTERN.sub(r"\\\1", str(self._records))
        with told():
            records = self._spark.read.schema(_READ_AS).parquet(path)
            parts = records.repartition(self._parts(), *_BY)
            ordered = parts.sortWithinPartitions(*_ORDER)
        self._progress.stage("tokenizing", None)
        books = self._run(ordered, _tokenizing(folder, tokenizer, loss_mask))
        for book in books:
            _raise(book)
        for name in (name for book in books for name in book["files"]):
            with pq.ParquetFile(folder / name) as file:
                for group in range(file.num_row_groups):
                    yield from file.read_row_group(group).combine_chunks().to_batches()

    def _parts(self) -> int:
        """How many partitions users are dealt out to."""
        size = sum(file.stat().st_size for file in self.files)
        cores = int(self._spark.sparkContext.defaultParallelism)
        wanted = max(-(-size // _PART_BYTES), _PARTS_PER_CORE * cores)
        return max(1, min(wanted, -(-size // _LEAST_PART_BYTES)))

    def _run(self, rows: DataFrame, task: Callable[[_Batches], _Batches]) -> list[dict[str, Any]]:
        """The results of ``task`` over the partitions of ``rows``, in their order."""
        with told():
            return [json.loads(row[0]) for row in rows.mapInArrow(task, _RESULT).collect()]


def _reading(files: Sequence[FileTable], folder: Path) -> Callable[[_Batches], _Batches]:
    """What reads the files whose numbers it is given into ``folder``."""

    def task(batches: _Batches) -> _Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                tally, written, error = Tally(), list[str](), None
                records = files[number].part(tally, NoProgress())
                try:
                    written = _write_blocks(folder, in_blocks(records, first=number * _MOST_ROWS))
                except UserdpError as refused:
                    error = refused
                yield _result(error, files=written, tally=tally.facts())

    return task


def _tokenizing(
    folder: Path, tokenizer: StoreTokenizer, loss_mask: bool
) -> Callable[[_Batches], _Batches]:
    """What tokenizes a partition of ordered records into ``folder``."""

    def task(batches: _Batches) -> _Batches:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a task for each core
        blocks = (tokenized(one, tokenizer, loss_mask=loss_mask) for one in _in_blocks(batches))
        try:
            yield _result(None, files=_write_blocks(folder, blocks))
        except UserdpError as refused:
            yield _result(refused, files=[])

    return task


def _write_blocks(folder: Path, blocks: _Batches) -> list[str]:
    """Write ``blocks`` into files of ``folder`` that nobody else writes; their names."""
    names: list[str] = []
    size = 0
    writer: pq.ParquetWriter | None = None
    for block in blocks:
        if writer is None:
            names.append(f"{secrets.token_hex(8)}.parquet")
            place = folder / names[-1]
            writer = pq.ParquetWriter(place, block.schema, compression="zstd", use_dictionary=[])
        writer.write_batch(block)  # a row group each, of which Spark reads one at a time
        size += block.nbytes
        if size > _FILE_BYTES:
            writer.close()
            writer, size = None, 0
    if writer is not None:
        writer.close()
    return names


def _in_blocks(batches: _Batches) -> Iterator[pa.RecordBatch]:
    """Records that Spark hands over, in blocks as one process makes them."""
    for batch in batches:
        (whole,) = pa.Table.from_batches([batch]).cast(BLOCK).to_batches() or [batch.slice(0, 0)]
        sizes = np.diff(offsets_of(whole["text"]))
        for begin, end in bounds_by_size(sizes, records=_RECORDS_AT_ONCE, size=BLOCK_BYTES):
            yield whole.slice(begin, end - begin)


def _result(error: UserdpError | None, **values: Any) -> pa.RecordBatch:
    """What a task gives back: JSON, which runs no code."""
    if error is not None:
        use = isinstance(error, UseError)
        values["error"] = {"use": use, "message": error.message, "hint": error.hint}
    return pa.RecordBatch.from_pydict({"result": [json.dumps(values)]})


def _raise(book: dict[str, Any]) -> None:
    """Raise the error that a task gave back, if it did."""
    if error := book.get("error"):
        kind = UseError if error["use"] else FailureError
        raise kind(error["message"], hint=error["hint"])


LEAST_HEAP = 2**29
"""Spark does not start with much less."""

_ATTEMPTS = 4
"""How often a task is tried; on clusters Spark's own default is the same."""

_LOCAL = {
    "spark.master": f"local[*,{_ATTEMPTS}]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_OURS = {
    # The number of partitions is chosen by `job`, and stays the same when a killed run goes on.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(BLOCK_BYTES),
}
"""What a session of our own says of its queries; the operator's session stays as it is."""


def require_spark() -> None:
    """`UseError` unless pyspark and a Java are here."""
    library("pyspark", extra="spark", what="--engine spark")
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        raise UseError(
            "Spark needs Java, and there is no java here",
            hint="install Java 17 or later, or set JAVA_HOME; or leave out --engine spark",
        )


@contextmanager
def session(spill: Path, *, heap: int) -> Iterator[SparkSession]:
    """A session in the Spark that is active, or in one of our own, which ends with the block.

    Args:
        spill: the folder of Spark's working files, if it is our own.
        heap: bytes of its driver, which in local mode is all of it.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        yield _with_ours(active)
        return
    spill.mkdir(exist_ok=True)
    settings = {
        "spark.app.name": "userdp prepare",
        "spark.driver.memory": f"{heap // 2**20}m",
        "spark.local.dir": str(spill),
        "spark.sql.warehouse.dir": str(spill / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        # Python on the executors finds this very userdp, whether it is installed there or not.
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
        **({} if _is_configured() else _LOCAL),
    }
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    if not _is_configured():  # executors on this machine run the Python that runs now
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with told():
        own = builder.getOrCreate()
    try:
        yield _with_ours(own)
    except BaseException:
        with suppress(Exception):  # a Java side that is gone fails in many ways, and why it is
            own.stop()  # gone is what is raised
        raise
    own.stop()


@contextmanager
def told(*more: type[Exception]) -> Iterator[None]:
    """`FailureError` where Spark, its Java side or the way to it fails; or by ``more`` alone.

    Without the warning of pyspark about pandas, which it imports and we do not use.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*pandas", FutureWarning)
        kinds = more or (PySparkException, Py4JError, OSError)
        try:
            yield
        except kinds as error:
            raise FailureError(
                f"preparing with Spark failed: {kind_of(error)}",
                hint="is the disk full, or --memory-limit too small? Working files lie beside the "
                "store",
            ) from error


def _with_ours(active: SparkSession) -> SparkSession:
    own = active.newSession()
    for name, value in _OURS.items():
        own.conf.set(name, value)
    return own


def _is_configured() -> bool:
    """Whether somebody said where Spark runs."""
    return any(os.environ.get(name) for name in ("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"))
