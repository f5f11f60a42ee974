"""One watch for all tests: an audit hook stays for the life of the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.faults.hostile.watch import Watch


@pytest.fixture(scope="session")
def watch() -> Watch:
    return Watch(Path("/nowhere"))
