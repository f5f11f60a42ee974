"""Whether the tests of an invariant notice a fault: `Trials` plants it and runs them."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from benchmarks.faults.planted import LIST, PACKAGE, ROOT, Fault, forget_compiled
from benchmarks.faults.reporter import FAULT, REPORT
from benchmarks.faults.reporter import LIST as LISTED

_PATIENCE = 240
"""Seconds of processor time. A fault by which a test does not end is no kill: nobody waits for it
to be named."""
_LONGEST = 3600.0
"""Seconds on the clock, after which tests that wait for something are given up; a busy machine may
need so long for those that do not."""
_BROKEN = frozenset({"ImportError", "ModuleNotFoundError", "NameError", "SyntaxError"})
"""Errors by which a fault did not get as far as being wrong."""
_LIGHT = ("hypothesis", "numpy", "scipy.special", "scipy.stats")
_HEAVY = (
    "duckdb", "pyarrow", "safetensors.torch", "tokenizers", "torch",
    "transformers.models.gpt2.modeling_gpt2",
)  # fmt: skip
"""Imported once, before the first fault whose tests need them: a fork of this process need not do
it again for each fault, which takes longer than most of its tests."""
_FORKS = multiprocessing.get_context("fork")
_ALL_PASSED, _SOME_FAILED, _NONE_RAN = 0, 1, 5


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
        self._folder, self._listed, self._patience = folder, listed, patience
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
        if PACKAGE in sys.modules:
            raise RuntimeError(f"{PACKAGE} is imported already, so that no copy of it can be tried")

    def try_(self, fault: Fault) -> Trial:
        """Plant ``fault``, run the tests that name its invariant, and take it out again.

        A test that fails with the fault must pass without it: else it says nothing of it.
        """
        for library in (*_LIGHT, *(_HEAVY if is_heavy(fault) else ())):
            importlib.import_module(library)
        path = self._folder / "src" / PACKAGE / fault.file
        sound = path.read_text("utf-8")
        path.write_text(fault.planted(sound), "utf-8")
        forget_compiled(path)
        try:
            trial = self._judged(fault)
        finally:
            path.write_text(sound, "utf-8")
            forget_compiled(path)
        if trial.verdict is Verdict.KILLED and trial.test is not None:
            code, _ = self._pytest(fault, [trial.test])
            if code != _ALL_PASSED:
                why = "the test fails without the fault too"
                return Trial(verdict=Verdict.ERROR, test=trial.test, seconds=trial.seconds, why=why)
        return trial

    def _judged(self, fault: Fault) -> Trial:
        begin = _spent()
        code, failed = self._pytest(fault, list(fault.tests))
        seconds = round(_spent() - begin, 1)

        def trial(verdict: Verdict, why: str) -> Trial:
            return Trial(verdict=verdict, test=failed.get("test"), seconds=seconds, why=why)

        if code is None:
            return trial(Verdict.ERROR, f"the tests did not end within {self._patience} s")
        if code == _ALL_PASSED:
            return trial(Verdict.SURVIVED, "")
        if code == _NONE_RAN:
            return trial(Verdict.ERROR, f"no test there names invariant {fault.invariant}")
        if code != _SOME_FAILED or not failed:
            return trial(Verdict.ERROR, "the tests could not be collected")
        said = f"{failed['error']}: {failed['message']}"
        broken = failed["error"] in _BROKEN
        return trial(Verdict.ERROR if broken else Verdict.KILLED, said)

    def _pytest(self, fault: Fault, targets: list[str]) -> tuple[int | None, dict[str, str]]:
        """The exit status, None where there is no end; and the first failure, if there is one."""
        report = self._folder / "report.json"
        report.unlink(missing_ok=True)
        environment = {
            "PYTHONPATH": str(self._folder / "src"),
            # What a fault made hypothesis find must not be among the examples of other runs.
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._folder / "hypothesis"),
            FAULT: fault.name,
            LISTED: str(self._listed),
            REPORT: str(report),
        }
        child = _FORKS.Process(target=_run_pytest, args=(targets, environment, self._patience))
        child.start()
        child.join(_LONGEST)
        if child.is_alive():
            with suppress(ProcessLookupError):
                os.killpg(child.pid or 0, signal.SIGKILL)  # what the tests started too
            child.join()
        code = child.exitcode
        if code is None or code < 0:  # a signal ended it
            return None, {}
        return code, json.loads(report.read_text()) if report.exists() else {}


def _spent() -> float:
    """Processor time of all children that ended, in seconds: clocks run on while others compute."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def is_heavy(fault: Fault) -> bool:
    """Whether its tests import torch, as far as their first lines tell; light ones go first."""
    texts = [(ROOT / test.partition("::")[0]).read_text("utf-8") for test in fault.tests]
    return any(
        re.search(r"^(from|import) \S*(torch|training|gradients|data)\b", text, re.MULTILINE)
        for text in texts
    )


def _run_pytest(targets: list[str], environment: Mapping[str, str], patience: int) -> None:
    """In a fork that has not imported userdp yet: run the tests over the copy of the source."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (patience, patience))
    os.environ.update(environment)
    os.chdir(ROOT)
    sys.path[:] = [environment["PYTHONPATH"], str(ROOT), *sys.path]
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    arguments = ["-q", "-x", "-m", "", "--no-header", "-p", "no:xdist", "-p", "no:cacheprovider"]
    sys.exit(int(pytest.main([*arguments, "-p", "benchmarks.faults.reporter", *targets])))
