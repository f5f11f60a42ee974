"""Bring each user's records together with Apache Spark: what DuckDB does, on many machines.

This process writes the records to one file of Parquet; Spark sorts them and writes them in parts,
in Java alone; this process reads the sorted parts one after another. A task
that fails, or whose machine is lost, is tried again by Spark, which keeps the files of successful
tasks only.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from userdp.core.environment import library
from userdp.core.errors import FailureError, UseError, kind_of
from userdp.data.grouping import MEMORY_LIMIT, RECORDS_AT_ONCE, size_in_bytes
from userdp.data.records import BLOCK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ORDER = ("user", "place")
_GROUP_BYTES = 2**25
"""Of a sorted part's row groups, each of which is read at once."""
_PATTERN = re.compile(r"([{}\[\]*?\\])")
"""Characters that Spark takes for a pattern in the path of an input."""
LEAST_HEAP = 2**29
"""Spark does not start with much less."""


class SparkGrouping:
    """What `userdp.data.grouping.Grouping` does, by Spark, which runs while `sort` does.

    Spark runs where ``SPARK_CONF_DIR`` or ``PYSPARK_SUBMIT_ARGS`` say, or is the session that is
    active; else it runs on this machine, its Java within ``memory_limit`` (and at least 512 MB). On
    a cluster ``folder`` must lie where all its machines see it. Records that
    are more than a task's memory holds are sorted on its disk.

    Args:
        folder: for the working files, some twice the size of the text compressed, and Spark's
            spill; whoever made it removes it.
        memory_limit: of Spark's driver, e.g. "1GB".

    Raises:
        UseError: ``memory_limit`` is no size, ``folder`` has a colon; pyspark or Java is missing.
        FailureError: in `sort`, when the disk is full or Spark ends.
    """

    def __init__(self, folder: Path, *, memory_limit: str = MEMORY_LIMIT) -> None:
        self._heap = max(size_in_bytes(memory_limit), LEAST_HEAP)
        library("pyspark", extra="spark", what="--engine spark")
        home = os.environ.get("JAVA_HOME")
        if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
            raise UseError(
                "Spark needs Java, and there is no java here",
                hint="install Java 17 or later, or set JAVA_HOME; or leave out --engine spark",
            )
        folder = folder.resolve()
        if ":" in str(folder):
            raise UseError(
                f"Spark cannot read or write {folder}: its paths may not have a colon",
                hint="choose another --out, or leave out --engine spark",
            )
        self._records, self._sorted = folder / "records.parquet", folder / "sorted"
        self._spill = folder / "spill"

    def add(self, blocks: Iterable[pa.RecordBatch]) -> None:
        """Take in all records of ``blocks``."""
        with pq.ParquetWriter(self._records, BLOCK, compression="zstd", use_dictionary=[]) as file:
            for block in blocks:
                file.write_batch(block)

    def sort(self) -> None:
        """Bring users' records together."""
        path = _PATTERN.sub(r"\\\1", str(self._records))
        with session(self._spill, heap=self._heap) as spark, spark_errors():
            rows = spark.read.parquet(path).orderBy(*_ORDER)
            rows.write.option("parquet.block.size", _GROUP_BYTES).parquet(str(self._sorted))
        self._records.unlink()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All records by (user bytes, place), in blocks."""
        for path in sorted(self._sorted.glob("part-*")):
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    rows = file.read_row_group(group).cast(BLOCK)
                    yield from rows.to_batches(max_chunksize=RECORDS_AT_ONCE)


@contextmanager
def session(spill: Path, *, heap: int) -> Iterator[SparkSession]:
    """The Spark that is active, or one of our own, which ends with the block.

    Args:
        spill: the folder of Spark's working files, if it is our own.
        heap: bytes of its driver, which on this machine is all of it.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    spill.mkdir(exist_ok=True)
    settings: dict[str, bool | float | int | str | None] = {
        "spark.app.name": "userdp prepare",
        "spark.driver.memory": f"{heap // 2**20}m",
        "spark.local.dir": str(spill),
        "spark.sql.warehouse.dir": str(spill / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
    }
    if not any(os.environ.get(name) for name in ("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")):
        here = dict.fromkeys(("spark.driver.host", "spark.driver.bindAddress"), "127.0.0.1")
        settings |= {"spark.master": "local[*]", **here}
    with spark_errors():
        own = SparkSession.builder.config(map=settings).getOrCreate()
    try:
        yield own
    finally:
        with suppress(Exception):  # a Java side that is gone fails in many ways
            own.stop()


@contextmanager
def spark_errors() -> Iterator[None]:
    """`FailureError` where Spark, its Java side or the way to it fails.

    The warning that pyspark gives about pandas is held back: pandas is not used here.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*pandas", FutureWarning)
        try:
            yield
        except (PySparkException, Py4JError, OSError) as error:
            raise FailureError(
                f"preparing with Spark failed: {kind_of(error)}",
                hint="is the disk full, or --memory-limit too small? Working files lie beside the "
                "store",
            ) from error
