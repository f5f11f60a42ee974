"""Bring each user's records together with Apache Spark: what `grouping` does beyond one machine.

The plan is DuckDB's: one global sort by (user bytes, order). Here the texts travel with the keys,
so that what comes back is read from front to back: parts of Parquet, in the order of their ranges.
Spark runs where ``SPARK_CONF_DIR`` or ``PYSPARK_SUBMIT_ARGS`` say, else in local mode; on a cluster
the store's folder must be on a file system that all its machines see.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from userdp.data.columns import BLOCK_BYTES, Columns, bounds_by_size, offsets_of
from userdp.data.grouping import MEMORY_LIMIT, size_in_bytes
from userdp.errors import FailureError, UseError
from userdp.extras import library
from userdp.withheld import in_kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA = pa.schema(
    [
        ("user", pa.large_binary()),
        ("place", pa.int64()),
        ("text", pa.large_binary()),
        ("held_out", pa.bool_()),
        ("pieces", pa.large_binary()),
    ]
)
_SORTED = "SELECT `user`, place, text, held_out, pieces FROM {records} ORDER BY `user`, place"
_FILE_BYTES = 2**27
_ROW_GROUP_BYTES = 2**24
_LEAST_HEAP = 2**29
"""Spark does not start with much less."""

_PATTERN = re.compile(r"([{}\[\]*?\\])")
"""What Spark would take for a pattern in a path that it reads."""

_LOCAL = {
    "spark.master": "local[*]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "16",
}


class SparkGrouping(AbstractContextManager["SparkGrouping"]):
    """Records in, the same records out ordered by (user bytes, order): `Grouping`, by Spark.

    A context manager; `add` is called once, then `batches`. Records are written to Parquet as they
    come, Spark sorts them out of core, and the parts it writes are read one after another: the
    memory of this process is some blocks of records, that of Spark ``memory_limit`` (in local
    mode; at least 512 MB, below which Spark does not start) or what its configuration says.

    Args:
        folder: for the working files, some twice the size of the text compressed, and Spark's
            spill; whoever made it removes it.
        memory_limit: of Spark's driver, e.g. "1GB".

    Raises:
        UseError: ``memory_limit`` is no size, ``folder`` has a colon; pyspark or Java is missing.
        FailureError: here and later, when the disk is full or Spark ends.
    """

    def __init__(self, folder: Path, *, memory_limit: str = MEMORY_LIMIT) -> None:
        self._heap = max(size_in_bytes(memory_limit), _LEAST_HEAP)
        _require_spark()
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder.resolve()
        if ":" in str(self._folder):
            raise UseError(
                f"Spark cannot read or write {self._folder}: its paths may not have a colon",
                hint="choose another --out, or leave out --engine spark",
            )
        self._read, self._written = self._folder / "unsorted", self._folder / "sorted"
        shutil.rmtree(self._read, ignore_errors=True)
        self._read.mkdir()

    def add(self, blocks: Iterable[Columns]) -> int:
        """Take in all records of ``blocks``; return how many they were."""
        added = number = 0
        writer: pq.ParquetWriter | None = None
        path = self._read
        try:
            for block in blocks:
                if not len(block):
                    continue
                if writer is None:
                    path = self._read / f"records-{number:06d}.parquet"
                    writer = pq.ParquetWriter(path, _SCHEMA, compression="zstd", use_dictionary=[])
                    number += 1
                writer.write_batch(_rows_of(block))  # a row group each: Spark reads one at a time
                added += len(block)
                if path.stat().st_size > _FILE_BYTES:
                    writer.close()
                    writer = None
        except pa.ArrowException as error:
            raise _failure(error) from error
        finally:
            if writer is not None:
                writer.close()
        return added

    def sort(self) -> None:
        """Sort by Spark; `batches` does it if nobody did."""
        partial = self._folder / "sorted.partial"
        shutil.rmtree(partial, ignore_errors=True)
        if any(self._read.iterdir()):
            with _session(self._folder / "spill", heap=self._heap) as spark:
                _sort(spark, self._read, partial)
        else:
            partial.mkdir()
        for number, part in enumerate(sorted(partial.glob("part-*.parquet"))):
            part.rename(self._folder / f"sorted-{number:06d}.parquet")
        shutil.rmtree(partial)
        self._written.touch()
        shutil.rmtree(self._read)

    @property
    def files(self) -> list[Path]:
        """What `batches` reads, once `sort` is done."""
        return [*self._parts(), self._written]

    def batches(
        self, *, skip: int = 0, records: int = 4096, size: int = BLOCK_BYTES
    ) -> Iterator[Columns]:
        """All records by (user bytes, order).

        Args:
            skip: how many to leave out.
            records: at most this many at a time,
            size: and no more once their texts have this many bytes.
        """
        if not self._written.exists():
            self.sort()
        for path in self._parts():
            try:
                with pq.ParquetFile(path) as file:
                    for group in range(file.num_row_groups):  # one in memory at a time
                        there = file.metadata.row_group(group).num_rows
                        if skip >= there:
                            skip -= there
                            continue
                        for whole in file.iter_batches(batch_size=records, row_groups=[group]):
                            rows = _columns_of(whole.slice(min(skip, len(whole))))
                            skip -= len(whole) - len(rows)
                            sizes = np.diff(offsets_of(rows.texts))
                            for bounds in bounds_by_size(sizes, records=records, size=size):
                                yield rows.part(*bounds)
            except (OSError, pa.ArrowException) as error:
                raise _failure(error) from error

    def _parts(self) -> list[Path]:
        return sorted(self._folder.glob("sorted-*.parquet"))

    def __exit__(self, *_: object) -> None:
        """Nothing is held open between calls."""


@contextmanager
def _session(spill: Path, *, heap: int) -> Iterator[SparkSession]:
    """The Spark session that is active, or one of our own, which ends with the block."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
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
        **({} if _is_configured() else _LOCAL),
    }
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        own = builder.getOrCreate()
    except (PySparkException, Py4JError, RuntimeError, OSError) as error:
        raise _failure(error) from error
    try:
        yield own
    except BaseException:
        with suppress(Exception):  # a Java side that is gone fails in many ways, and why it is
            own.stop()  # gone is what is raised
        raise
    own.stop()


def _is_configured() -> bool:
    """Whether somebody said where Spark runs."""
    return any(os.environ.get(name) for name in ("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"))


def _sort(spark: SparkSession, read: Path, into: Path) -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        records = spark.read.schema(
            "`user` BINARY, place BIGINT, text BINARY, held_out BOOLEAN, pieces BINARY"
        ).parquet(_PATTERN.sub(r"\\\1", str(read)))
        in_order = spark.sql(_SORTED, records=records)
        # Small row groups, so that reading one back is cheap in memory.
        written = in_order.write.option("parquet.block.size", _ROW_GROUP_BYTES)
        written.option("maxRecordsPerFile", 0).parquet(str(into), compression="zstd")
    except (PySparkException, Py4JError, OSError) as error:
        raise _failure(error) from error


def _require_spark() -> None:
    library("pyspark", extra="spark", what="--engine spark")
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        raise UseError(
            "Spark needs Java, and there is no java here",
            hint="install Java 17 or later, or set JAVA_HOME; or leave out --engine spark",
        )


def _rows_of(block: Columns) -> pa.RecordBatch:
    nothing = pa.repeat(pa.scalar(b"", pa.large_binary()), len(block))
    columns = [
        block.users,
        pa.array(block.orders),
        block.texts,
        pa.array(block.held_out),
        nothing if block.pieces is None else block.pieces,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


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


def _failure(error: Any) -> FailureError:
    return FailureError(
        f"grouping records by user with Spark failed: {in_kind(error)}",
        hint="is the disk full, or --memory-limit too small? Working files lie beside the store",
    )
