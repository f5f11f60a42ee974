"""A plugin of pytest, for the runs of `benchmarks.faults.verdicts`.

It leaves only the tests that name the fault's invariant or bear one of its pitfalls, and writes
down which test failed first, and by what error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.forks import write_failure
from benchmarks.faults.planted import names_it, read_faults

FAULT, LIST = "USERDP_FAULT", "USERDP_FAULT_LIST"
"""What is told by the environment: the fault's name, and the file it stands in."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    faults = {fault.name: fault for fault in read_faults(Path(os.environ[LIST]))}
    fault = faults[os.environ[FAULT]]
    kept, left = [], []
    for item in items:
        pitfalls = [int(mark.kwargs["number"]) for mark in item.iter_markers("pitfall")]
        name = getattr(item, "originalname", None) or item.name
        (kept if names_it(name, pitfalls, fault) else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[Any]:
    report = yield
    if report.failed:
        write_failure(item.nodeid, call.excinfo)
    return report
