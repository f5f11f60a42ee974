"""Whether the tests of an invariant notice a fault: `Trials` plants it and runs them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks.faults.forks import (
    ALL_PASSED,
    HEAVY,
    LIGHT,
    NONE_RAN,
    SOME_FAILED,
    Copy,
    Outcome,
    import_all,
)
from benchmarks.faults.planted import LIST, PACKAGE, ROOT, Fault
from benchmarks.faults.reporter import FAULT
from benchmarks.faults.reporter import LIST as LISTED

_PATIENCE = 240
"""Seconds of processor time. A fault by which a test does not end is no kill: nobody waits for it
to be named."""
_BROKEN = frozenset({"ImportError", "ModuleNotFoundError", "NameError", "SyntaxError"})
"""Errors by which a fault did not get as far as being wrong."""


class Verdict(StrEnum):
    """What became of a fault."""

    KILLED = "killed"
    SURVIVED = "survived"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One fault, tried.

    Args:
        verdict: of the tests that name its invariant.
        test: which one failed first; None where none did.
        seconds: of processor time that they took.
        why: the verdict, where it is an error; else what the test said.
    """

    verdict: Verdict
    test: str | None
    seconds: float
    why: str


class Trials:
    """A copy of the source, in which one fault at a time is planted.

    Args:
        folder: empty; for the copy.
        listed: the file that the faults come from.
        patience: seconds of processor time that one run of tests may take.
    """

    def __init__(self, folder: Path, *, listed: Path = LIST, patience: int = _PATIENCE) -> None:
        self._copy, self._listed, self._patience = Copy(folder), listed, patience

    def try_(self, fault: Fault) -> Trial:
        """Plant ``fault``, run the tests that name its invariant, and take it out again.

        A test that fails with the fault must pass without it: else it says nothing of it.
        """
        # Before the first fault whose tests need them: see `forks`.
        import_all((*LIGHT, *(HEAVY if is_heavy(fault) else ())))
        sound = (self._copy.source / PACKAGE / fault.file).read_text("utf-8")
        with self._copy.changed(fault.file, fault.planted(sound)):
            trial = self._judged(fault)
        if trial.verdict is not Verdict.KILLED or trial.test is None:
            return trial
        if self._pytest(fault, [trial.test]).code == ALL_PASSED:
            return trial
        why = "the test fails without the fault too"
        return Trial(verdict=Verdict.ERROR, test=trial.test, seconds=trial.seconds, why=why)

    def _judged(self, fault: Fault) -> Trial:
        run = self._pytest(fault, fault.tests)

        def trial(verdict: Verdict, why: str) -> Trial:
            test = run.failed.get("test")
            return Trial(verdict=verdict, test=test, seconds=run.seconds, why=why)

        if run.code is None:
            return trial(Verdict.ERROR, f"the tests did not end within {self._patience} s")
        if run.code == ALL_PASSED:
            return trial(Verdict.SURVIVED, "")
        if run.code == NONE_RAN:
            return trial(Verdict.ERROR, f"no test there names invariant {fault.invariant}")
        if run.code != SOME_FAILED or not run.failed:
            return trial(Verdict.ERROR, "the tests could not be collected")
        said = f"{run.failed['error']}: {run.failed['message']}"
        broken = run.failed["error"] in _BROKEN
        return trial(Verdict.ERROR if broken else Verdict.KILLED, said)

    def _pytest(self, fault: Fault, targets: Sequence[str]) -> Outcome:
        environment = {FAULT: fault.name, LISTED: str(self._listed)}
        arguments = ["-p", "benchmarks.faults.reporter", *targets]
        return self._copy.pytest(arguments, environment, patience=self._patience)


def is_heavy(fault: Fault) -> bool:
    """Whether its tests import torch, as far as their first lines tell; light ones go first."""
    texts = [(ROOT / test.partition("::")[0]).read_text("utf-8") for test in fault.tests]
    return any(
        re.search(r"^(from|import) \S*(torch|training|gradients|data)\b", text, re.MULTILINE)
        for text in texts
    )
