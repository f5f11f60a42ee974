"""A plugin of pytest: which test runs which line of the source, and how long each takes.

What a fixture of a module or a session runs, and the time that it takes, counts for every test that
asks for it, although pytest runs it within the first of them. Lines that run while modules are
imported belong to no test.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

from benchmarks.faults.planted import digest_of_text

PART, SOURCES = "USERDP_MAP_PART", "USERDP_MAP_SOURCES"
"""What is told by the environment: the file to write, and the folders whose lines count."""

_FIXTURE = "fixture "


class Recorder:
    """Measures one run of pytest.

    Args:
        part: the file that is written when the run ends.
        folders: whose modules are measured, separated by the system's path separator.
    """

    def __init__(self, part: Path, folders: str) -> None:
        self._part = part
        paths = [Path(folder) for folder in folders.split(os.pathsep)]
        include = [str(path / "*") if path.is_dir() else str(path) for path in paths]
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=include)
        self._tests: dict[str, dict[str, Any]] = {}
        self._fixtures: dict[str, float] = {}
        self._inner = 0.0  # seconds of fixtures that were set up within what is measured now
        self._now = ""
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        begin, self._inner = time.process_time(), 0.0
        closure = getattr(item, "_fixtureinfo", None)
        definitions = closure.name2fixturedefs.values() if closure is not None else ()
        shared = [_key(one[-1]) for one in definitions if one and one[-1].scope != "function"]
        test = {"passed": True, "fixtures": shared, "seconds": 0.0}
        self._tests[item.nodeid] = test
        self._go_on_as(item.nodeid)
        done = yield
        self._go_on_as("")
        test["seconds"] = round(time.process_time() - begin - self._inner, 3)
        return done

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        begin, outer, before = time.process_time(), self._inner, self._now
        self._inner = 0.0
        self._go_on_as(_key(fixturedef))
        try:
            return (yield)
        finally:
            whole = time.process_time() - begin
            self._fixtures[_key(fixturedef)] = round(whole - self._inner, 3)
            self._inner = outer + whole
            self._go_on_as(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tests[report.nodeid]["passed"] &= report.passed

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        names = {name: number for number, name in enumerate(self._tests)}
        users: dict[str, list[int]] = {}
        for name, test in self._tests.items():
            for fixture in test["fixtures"]:
                users.setdefault(fixture, []).append(names[name])
        lines: dict[str, dict[int, list[int]]] = {}
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                found: set[int] = set()
                for context in contexts:
                    fixture = context.startswith(_FIXTURE)
                    found.update(users.get(context, ()) if fixture else [names.get(context, -1)])
                lines.setdefault(file, {})[line] = sorted(found - {-1})
        digests = {file: digest_of_text(Path(file).read_text("utf-8")) for file in lines}
        modules = sorted({name.partition("::")[0] for name in self._tests})
        files = {file: digest_of_text(Path(file).read_text("utf-8")) for file in modules}
        written = {
            "tests": self._tests,
            "fixtures": self._fixtures,
            "lines": lines,
            "digests": digests,
            "files": files,
        }
        self._part.parent.mkdir(parents=True, exist_ok=True)
        self._part.write_text(json.dumps(written))

    def _go_on_as(self, context: str) -> None:
        self._now = context
        self._coverage.switch_context(context)


def _key(fixture: pytest.FixtureDef[Any]) -> str:
    return f"{_FIXTURE}{fixture.baseid}::{fixture.argname}"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(Path(os.environ[PART]), os.environ[SOURCES]))
