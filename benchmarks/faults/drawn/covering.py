"""Which tests run which line of the source: a map that is measured once, and then kept up to date.

``python -m benchmarks.faults.drawn.covering`` runs the fast tests of every folder under
`benchmarks.faults.drawn.recorder`; again only those of files that have changed since. Tests that
failed are not in the map.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from benchmarks.faults.drawn.draw import PARTS
from benchmarks.faults.drawn.positions import Mutant
from benchmarks.faults.drawn.recorder import PART, SOURCES
from benchmarks.faults.planted import PACKAGE, ROOT, digest_of_text

FOLDER = ROOT / "runs" / "mutants-map"
_FOLDERS = (
    "accounting", "sampling", "ledger", "claims", "gradients", "planning", "training", "api",
    "queries", "people", "sweeping", "federated", "formats", "reporting", "auditing", "cli",
)  # fmt: skip
"""Of ``tests``; the others run commands in processes of their own, whose lines are not seen."""
_WHOLE = ("tests/accounting/test_proof.py",)
"""Files of which the slow tests count too: most of what they check takes some seconds."""
_LATER = 0.5
"""Seconds by which tests of another folder are put off: those of the same name know more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """Tests for a mutant, in the order in which they run.

    Args:
        tests: their node ids.
        seconds: of processor time that they took when the map was made.
        covered: whether any test runs the place itself; if not, no test is chosen.
    """

    tests: tuple[str, ...]
    seconds: float
    covered: bool


class Map:
    """Reads the files that the recorder wrote.

    A file of tests that has changed since is not in the map; one that was recorded several times is
    there as it was last.

    Args:
        folder: where they lie.
        root: of the repository, for the files of tests.
    """

    def __init__(self, folder: Path = FOLDER, root: Path = ROOT) -> None:
        self._root = root
        paths = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        self._parts = [json.loads(path.read_text()) for path in paths]
        self._newest = {
            file: number
            for number, part in enumerate(self._parts)
            for file, digest in part["files"].items()
            if digest == digest_of_file(root / file)
        }

    @property
    def files(self) -> frozenset[str]:
        """The files of tests that the map knows as they are."""
        return frozenset(self._newest)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Processor time of every test that passed, that of shared fixtures left out."""
        return {name: test["seconds"] for name, (test, _) in self._tests.items()}

    @cached_property
    def _tests(self) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
        """Each test that passed, and the part that it is in."""
        return {
            name: (test, part)
            for number, part in enumerate(self._parts)
            for name, test in part["tests"].items()
            if test["passed"] and self._newest.get(name.partition("::")[0]) == number
        }

    def _fixtures(self, name: str) -> dict[str, float]:
        """Shared fixtures of a test, and the processor time that each takes once."""
        test, part = self._tests[name]
        return {fixture: part["fixtures"].get(fixture, 0.0) for fixture in test["fixtures"]}

    def running(self, file: str, lines: Iterable[int] | None) -> set[str]:
        """The tests that run one of these lines of ``file``; of None, any line."""
        wanted = None if lines is None else {str(line) for line in lines}
        found: set[str] = set()
        for number, part in enumerate(self._parts):
            names = [
                name if self._newest.get(name.partition("::")[0]) == number else ""
                for name in part["tests"]
            ]
            for path, known in part["lines"].items():
                if not path.endswith(f"/{PACKAGE}/{file}"):
                    continue
                # Lines of a text that has changed since are other lines.
                fresh = part["digests"][path] == digest_of_file(ROOT / "src" / PACKAGE / file)
                for line, tests in known.items():
                    if wanted is None or line in wanted or not fresh:
                        found.update(names[test] for test in tests)
        return found & self.seconds.keys()

    def chosen(self, mutant: Mutant, *, limit: float) -> Chosen:
        """The tests that shall notice ``mutant``: those that run its place, as many as time allows.

        What runs when the module is imported, which is recorded for whatever test came first, is
        run by every test that runs anything of the module. Of a module that is newer than the map,
        the tests of its part are taken. After these come the other tests of the same files: a
        result that an earlier test left in a cache hides that they need the place too.

        Args:
            mutant: to be noticed.
            limit: seconds of processor time that they may have taken, together.
        """
        text = (ROOT / "src" / PACKAGE / mutant.file).read_text("utf-8")
        first, last = mutant.lines
        if not self.seconds:
            raise FileNotFoundError(
                "No test is known to run any line, so that no mutant can be tried. Make the map "
                "with `python -m benchmarks.faults.drawn.covering`."
            )
        whole, deferred = _statement(text, first)
        tests = self.running(mutant.file, range(first, last + 1) if deferred else None)
        if not tests and deferred:
            tests = self.running(mutant.file, whole)
        own = mutant.file.partition("/")[0].removesuffix(".py")
        if not self._knows(mutant.file):
            tests = {name for name in self.seconds if _is_own(name, own)}
        if not tests:
            return Chosen(tests=(), seconds=0.0, covered=False)
        files = {test.partition("::")[0] for test in tests if _is_own(test, own)}
        beside = {name for name in self.seconds if name.partition("::")[0] in files} - tests
        order = sorted(tests, key=lambda name: (self._weight(name, own), name))
        order += sorted(beside, key=lambda name: (self._cost(name), name))
        kept, total, ready = [], 0.0, set[str]()
        for name in order:
            more = self._cost(name, ready)
            if kept and total + more > limit:
                continue
            kept.append(name)
            total += more
            ready.update(self._fixtures(name))
        return Chosen(tests=tuple(kept), seconds=round(total, 1), covered=True)

    def _cost(self, name: str, ready: Collection[str] = ()) -> float:
        """Processor time of a test, and of those of its fixtures that are not ready yet."""
        fixtures = self._fixtures(name).items()
        return self.seconds[name] + sum(cost for one, cost in fixtures if one not in ready)

    def _knows(self, file: str) -> bool:
        paths = (path for part in self._parts for path in part["lines"])
        return any(path.endswith(f"/{PACKAGE}/{file}") for path in paths)

    def _weight(self, name: str, own: str) -> float:
        return self._cost(name) + (0.0 if _is_own(name, own) else _LATER)


def _is_own(test: str, own: str) -> bool:
    return f"/{own}/" in test or f"/test_{own}.py" in test


def _statement(text: str, line: int) -> tuple[range, bool]:
    """The lines of the smallest statement around ``line``; whether it lies in a function's body.

    Of a statement that holds others, only its head.
    """
    found, deferred = range(line, line + 1), False
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.stmt) or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        body = getattr(node, "body", None)
        if isinstance(node, ast.FunctionDef) and body and line >= body[0].lineno:
            deferred = True
        end = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno
        if end is not None and node.lineno <= line <= end:
            found = range(node.lineno, end + 1)
    return found, deferred


@cache
def digest_of_file(path: Path) -> str | None:
    """Of its text; None where there is none."""
    return digest_of_text(path.read_text("utf-8")) if path.is_file() else None


def _record(part: Path, targets: list[str], *, marked: str) -> None:
    package = ROOT / "src" / PACKAGE
    sources = [str(package / path) for part in PARTS for path in part.paths]
    environment: dict[str, Any] = {
        **os.environ,
        PART: str(part),
        SOURCES: os.pathsep.join(sources),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    plugins = ["no:xdist", "no:cacheprovider", "benchmarks.faults.drawn.recorder"]
    arguments = [word for plugin in plugins for word in ("-p", plugin)]
    command = [sys.executable, "-m", "pytest", "-q", "-m", marked, *arguments, *targets]
    subprocess.run(command, cwd=ROOT, env=environment, check=False)  # failures are not in the map


def _files_of(folder: str, pattern: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).glob(pattern))


def main() -> int:
    """Measure what the map does not know as it is."""
    groups = {name: _files_of(f"tests/{name}", "**/test_*.py") for name in _FOLDERS}
    groups = {
        name: [file for file in files if file not in _WHOLE] for name, files in groups.items()
    }
    groups["whole"] = list(_WHOLE)
    groups["alone"] = _files_of("tests", "test_*.py")
    doctests = _files_of(f"src/{PACKAGE}", "**/*.py")
    groups["doctests"] = [file for file in doctests if ">>> " in (ROOT / file).read_text("utf-8")]
    known = Map().files
    for name, files in groups.items():
        missing = [file for file in files if file not in known]
        if missing:
            print(f"{len(missing)} files of {name}", file=sys.stderr, flush=True)
            number = len(list(FOLDER.glob(f"{name}-*.json")))
            marked = "" if name == "whole" else "not slow"
            _record(FOLDER / f"{name}-{number}.json", missing, marked=marked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
