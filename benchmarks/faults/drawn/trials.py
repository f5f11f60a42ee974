"""Whether the tests that run a mutant's line notice it: each worker has a copy of the source."""

from __future__ import annotations

import ast
import json
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks.faults.drawn.covering import Map
from benchmarks.faults.drawn.positions import Mutant
from benchmarks.faults.drawn.selector import TESTS
from benchmarks.faults.forks import (
    ALL_PASSED,
    HEAVY,
    LIGHT,
    NONE_RAN,
    Copy,
    Outcome,
    import_all,
)
from benchmarks.faults.planted import PACKAGE, ROOT, digest_of_text

LIMIT = 15.0
"""Seconds of processor time of the tests that are chosen for one mutant."""
_LEAST_PATIENCE, _PER_SECOND = 25, 3
"""A mutant may make tests slower: they have so many seconds, and so many for each of their own."""
_LONGEST = 900.0


class Verdict(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    TOO_LONG = "too long"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One mutant, tried.

    Args:
        verdict: of the tests that run its line. *Too long*: none failed, and they did not end.
        test: which one failed first; None where none did.
        test_digest: of its text; None where none did.
        why: what it said, or why none could.
        tests: how many were chosen.
        seconds: of processor time.
    """

    verdict: Verdict
    test: str | None
    test_digest: str | None
    why: str
    tests: int
    seconds: float


class Worker:
    """Tries mutants, one after another, in a copy of its own.

    Args:
        limit: seconds of processor time of the tests that are chosen for one mutant.
    """

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit
        self._folder = tempfile.TemporaryDirectory(prefix="userdp-mutants-")
        self._copy = Copy(Path(self._folder.name))
        self._map = Map()
        import_all((*LIGHT, *HEAVY))

    def sound(self, mutant: Mutant) -> str:
        """The text of the mutant's module, without it."""
        return (self._copy.source / PACKAGE / mutant.file).read_text("utf-8")

    def try_(self, mutant: Mutant) -> Trial:
        """Plant ``mutant``, run the tests that run its line, and take it out again."""
        chosen = self._map.chosen(mutant, limit=self._limit)
        if not chosen.covered:
            return Trial(
                verdict=Verdict.SURVIVED,
                test=None,
                test_digest=None,
                why="no fast test runs this line",
                tests=0,
                seconds=0.0,
            )
        listed = Path(self._folder.name) / "tests.json"
        listed.write_text(json.dumps(chosen.tests))
        files = dict.fromkeys(test.partition("::")[0] for test in chosen.tests)
        copied = (
            str(self._copy.source.parent / file) if file.startswith("src/") else file
            for file in files
        )
        root = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT))
        arguments = [*root, "-p", "benchmarks.faults.drawn.selector", *copied]
        with self._copy.changed(mutant.file, mutant.planted(self.sound(mutant))):
            run = self._copy.pytest(
                arguments,
                {TESTS: str(listed)},
                patience=round(_LEAST_PATIENCE + _PER_SECOND * chosen.seconds),
                longest=_LONGEST,
            )
        if run.code not in (None, ALL_PASSED, NONE_RAN) and not run.failed:
            # Tests, or what they share, failed while they were imported: noticed, if they are
            # whole without it.
            alone = [*arguments, "--collect-only"]
            sound = self._copy.pytest(alone, {TESTS: str(listed)}, patience=_LEAST_PATIENCE)
            if sound.code != ALL_PASSED:
                raise RuntimeError(f"{mutant}: pytest ended with {run.code}, and no test failed")
        verdict = Verdict.KILLED
        if run.code is None and not run.failed:
            verdict = Verdict.TOO_LONG
        elif run.code in (ALL_PASSED, NONE_RAN):
            verdict = Verdict.SURVIVED
        test = run.failed.get("test")
        return Trial(
            verdict=verdict,
            test=test,
            test_digest=None if test is None else digest_of_test(test),
            why=_why(run),
            tests=len(chosen.tests),
            seconds=run.seconds,
        )


def _why(run: Outcome) -> str:
    if run.failed:
        return f"{run.failed['error']}: {run.failed['message']}"[:200]
    if run.code == NONE_RAN:  # they are made of values that it changed
        return "none of the tests that run this line is there with it"
    return "" if run.code in (None, ALL_PASSED) else "its tests cannot be imported"


def digest_of_test(test: str) -> str:
    """Of the text of a test's function; of a doctest or of a whole file, the file's.

    A kill counts as long as the test that noticed it is what it was. One that is gone is ``gone``.
    """
    file, _, name = test.partition("::")
    path = ROOT / file
    if not path.is_file():
        return "gone"
    text = path.read_text("utf-8")
    if not name or file.startswith("src/"):
        return digest_of_text(text)
    function = name.partition("[")[0].rpartition("::")[2]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return digest_of_text(ast.get_source_segment(text, node) or "")
    return "gone"
