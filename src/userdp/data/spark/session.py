"""Start Spark, and tell of its failures."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from userdp.data.records import BLOCK_BYTES
from userdp.errors import FailureError, UseError, kind_of
from userdp.extras import library

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[3]),
        **({} if _is_configured() else _LOCAL),
    }
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _own_python(), quiet(), told():
        own = builder.getOrCreate()
    try:
        yield _with_ours(own)
    except BaseException:
        with suppress(Exception):  # a Java side that is gone fails in many ways, and why it is
            own.stop()  # gone is what is raised
        raise
    own.stop()


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warning of pyspark about pandas, which it imports and we do not use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*pandas", FutureWarning)
        yield


@contextmanager
def told() -> Iterator[None]:
    """`FailureError` where Spark, its Java side or the way to it fails."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        raise failure(error) from error


def failure(error: Any) -> FailureError:
    """What an error of Spark is called here."""
    return FailureError(
        f"preparing with Spark failed: {kind_of(error)}",
        hint="is the disk full, or --memory-limit too small? Working files lie beside the store",
    )


def _with_ours(active: SparkSession) -> SparkSession:
    own = active.newSession()
    for name, value in _OURS.items():
        own.conf.set(name, value)
    return own


@contextmanager
def _own_python() -> Iterator[None]:
    """Executors on this machine run the Python that runs now, unless somebody said another."""
    if _is_configured() or "PYSPARK_PYTHON" in os.environ:
        yield
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    try:
        yield
    finally:
        del os.environ["PYSPARK_PYTHON"]


def _is_configured() -> bool:
    """Whether somebody said where Spark runs."""
    return any(os.environ.get(name) for name in ("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"))
