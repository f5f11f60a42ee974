"""A plugin of pytest, for the runs of `benchmarks.faults.drawn.trials`.

It leaves only the chosen tests, in their order, and writes down which failed first, and by what
error. A module that cannot be imported is a failure too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.forks import write_failure
from benchmarks.faults.planted import PACKAGE

TESTS = "USERDP_MUTANT_TESTS"
"""The variable that names a file with the node ids, as JSON."""


def name_of(node: str, path: Path) -> str:
    """The node id of a test; of a doctest in a copy of the source, that of the source's own.

    pytest knows no path of a file that lies outside of its root.

    >>> name_of("::userdp.clip.Clip", Path("/tmp/copy/src/userdp/clip.py"))
    'src/userdp/clip.py::userdp.clip.Clip'
    """
    _, inner, rest = path.as_posix().partition(f"/src/{PACKAGE}/")
    return f"{inner[1:]}{rest}::{node.partition('::')[2]}" if inner else node


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = json.loads(Path(os.environ[TESTS]).read_text())
    order = {name: number for number, name in enumerate(wanted)}
    kept = [item for item in items if name_of(item.nodeid, item.path) in order]
    left = [item for item in items if name_of(item.nodeid, item.path) not in order]
    items[:] = sorted(kept, key=lambda item: order[name_of(item.nodeid, item.path)])
    config.hook.pytest_deselected(items=left)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[Any]:
    report = yield
    if report.failed:
        write_failure(name_of(item.nodeid, item.path), call.excinfo)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[Any]:
    report = yield
    if report.failed:
        call = getattr(report, "call", None)
        write_failure(
            name_of(collector.nodeid, collector.path), call.excinfo if call is not None else None
        )
    return report
