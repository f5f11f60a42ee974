"""One Spark for all tests of a module: starting it takes seconds."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java", allow_module_level=True)

from userdp.data import spark as job
from userdp.data.spark import session as start


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """A Spark that `SparkJob` finds active."""
    with start(tmp_path_factory.mktemp("spark"), heap=2**29) as spark:
        yield spark


@pytest.fixture
def small(monkeypatch):
    """Parts so small that small corpora have several."""
    monkeypatch.setattr(job, "_LEAST_PART_BYTES", 5000)
