"""Tokenize on the machines of Apache Spark.

This process reads the records and writes them to files of few megabytes. Each file is a job of
Spark's: an executor reads it, and writes the tokens to another. Meanwhile this process reads on,
and then takes the tokens in. Java only schedules: text and tokens go from file to file, and nothing
of them stays in Spark's own folders. A task that fails, or whose machine is lost, is tried again by
Spark; the file of its tokens is there whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from userdp.core.environment import library
from userdp.core.errors import FailureError, UseError, UserdpError, kind_of
from userdp.core.files import OPERATOR_FILE, whole_file
from userdp.data.records import BLOCK

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext

Tokens = Callable[[pa.RecordBatch], pa.RecordBatch]
_PART_BYTES = 2**22
"""Of records in a file: a second of work, so that all cores have some until the end."""
_MOST_JOBS = 256
"""Files that executors work on at once."""
_ending: list[Future[None]] = []
"""A Spark of our own that has done its work and stops, which takes a second."""


def tokenized_by_spark(
    tokens: Tokens, blocks: Iterable[pa.RecordBatch], folder: Path
) -> Iterator[pa.RecordBatch]:
    """``tokens`` of each of ``blocks``, in their order, computed by Spark's executors.

    Spark is the one that is active, or runs where ``SPARK_CONF_DIR`` or ``PYSPARK_SUBMIT_ARGS``
    say, or else on this machine. On a cluster ``folder`` must lie where all its machines see it,
    and their Python must have userdp.

    Args:
        tokens: turns a block of records into one with their tokens; is pickled.
        blocks: of the schema `BLOCK`; all are read before the first result comes.
        folder: for the working files, about as large as the text; whoever made it removes it.

    Raises:
        UseError: pyspark or Java is missing; a text cannot be tokenized.
        FailureError: the disk is full, or Spark ends.
    """
    library("pyspark", extra="spark", what="--engine spark")
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        raise UseError(
            "Spark needs Java, and there is no java here",
            hint="install Java 17 or later, or set JAVA_HOME; or leave out --engine spark",
        )
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with ThreadPoolExecutor(_MOST_JOBS) as pool, ExitStack() as ending:
        spark = ExitStack()
        # Java starts as long as this process reads a million records.
        starting = pool.submit(_started, spark, tokens)
        ending.push(spark)
        ending.callback(wait, [starting])
        ending.callback(pool.shutdown, wait=False, cancel_futures=True)
        jobs = [pool.submit(_job, starting, part) for part in _parts(blocks, folder.resolve())]
        for job in jobs:
            try:
                part = job.result()
            except (PySparkException, Py4JError, OSError) as error:
                raise FailureError(
                    f"preparing with Spark failed: {kind_of(error)}",
                    hint="is the disk full? Working files lie beside the store",
                ) from error
            with pa.OSFile(str(part)) as file:
                yield from pa.ipc.open_stream(file)
            part.unlink()


def _parts(blocks: Iterable[pa.RecordBatch], folder: Path) -> Iterator[Path]:
    """The files of records, each once it is written."""
    blocks = iter(blocks)
    for number, first in enumerate(blocks):
        part = folder / f"texts-{number}"
        with pa.OSFile(str(part), "wb") as file, pa.ipc.new_stream(file, BLOCK) as sink:
            for block in chain([first], blocks):
                sink.write_batch(block)
                if file.tell() >= _PART_BYTES:
                    break
        yield part


def _started(spark: ExitStack, tokens: Tokens) -> tuple[SparkContext, Broadcast[Tokens]]:
    context = spark.enter_context(session())
    return context, context.broadcast(tokens)


def _job(starting: Future[tuple[SparkContext, Broadcast[Tokens]]], part: Path) -> Path:
    """Have the records of a file tokenized; return the file of their tokens."""
    spark, tokens = starting.result()
    (done,) = spark.parallelize([part], 1).map(partial(tokenize_part, tokens=tokens)).collect()
    if isinstance(done, UserdpError):
        raise done
    part.unlink()
    return Path(done)


def tokenize_part(part: Path, *, tokens: Broadcast[Tokens]) -> Path | UserdpError:
    """Write the tokens of a file of records, on an executor, and return where they are.

    An error of ours is returned: Spark would try again, and wrap it.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # Spark counts a core for each task
    out = part.with_suffix(".tokens")
    try:
        with (
            pa.OSFile(str(part)) as file,
            whole_file(out, mode=OPERATOR_FILE) as whole,
            pa.ipc.new_stream(whole, BLOCK) as sink,
        ):
            for block in pa.ipc.open_stream(file):
                sink.write_batch(tokens.value(block))
    except UserdpError as error:
        return error
    return out


@contextmanager
def session() -> Iterator[SparkContext]:
    """The Spark that is active, or one of our own, which ends behind the block.

    After an error it ends before the block is left: until then executors may still write files.
    """
    from pyspark import SparkConf, SparkContext

    settings = {
        "spark.app.name": "userdp prepare",
        "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",  # it only schedules
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
    }
    if not any(os.environ.get(name) for name in ("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")):
        here = dict.fromkeys(("spark.driver.host", "spark.driver.bindAddress"), "127.0.0.1")
        settings |= {"spark.master": "local[*]", **here}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    wait(_ending)
    try:
        own = SparkContext(conf=SparkConf().setAll([*settings.items()]))
    except ValueError:  # another one is active
        yield SparkContext.getOrCreate()
        return
    try:
        yield own
    except BaseException:
        with suppress(Exception):  # a Java side that is gone fails in many ways
            own.stop()
        raise
    pool = ThreadPoolExecutor(1)
    _ending[:] = [pool.submit(own.stop)]
    pool.shutdown(wait=False)
