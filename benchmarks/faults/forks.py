"""Runs of pytest over a changed copy of the source, each in a fork that imported nothing of it yet.

A fork of a process that has imported torch need not import it again, which takes longer than most
tests.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import multiprocessing.process
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.faults.planted import PACKAGE, ROOT, forget_compiled

LIGHT = ("hypothesis", "numpy", "scipy.special", "scipy.stats")
HEAVY = (
    "duckdb", "pyarrow", "safetensors.torch", "tokenizers", "torch",
    "transformers.models.gpt2.modeling_gpt2",
)  # fmt: skip
ALL_PASSED, SOME_FAILED, NONE_RAN = 0, 1, 5
REPORT = "USERDP_FAULT_REPORT"
"""The variable of the environment that names the file into which a plugin writes the first failure
(`write_failure`)."""
LONGEST = 3600.0
"""Seconds on the clock, after which tests that wait for something are given up; a busy machine may
need so long for those that do not."""
_IDLE = 60.0
"""Seconds on the clock in which tests compute nothing at all, after which they are given up too."""
_FORKS = multiprocessing.get_context("fork")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How one run of pytest ended.

    Args:
        code: its exit status; None where a signal ended it, because it took too long.
        failed: the first failure (``test``, ``error``, ``message``); empty where there is none.
        seconds: of processor time.
    """

    code: int | None
    failed: Mapping[str, str]
    seconds: float


class Copy:
    """A copy of the source, of which one module at a time is changed.

    Args:
        folder: empty; for the copy.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.source = folder / "src"
        shutil.copytree(ROOT / "src", self.source, ignore=shutil.ignore_patterns("__pycache__"))
        if PACKAGE in sys.modules:
            raise RuntimeError(f"{PACKAGE} is imported already, so that no copy of it can be tried")

    @contextmanager
    def changed(self, file: str, text: str) -> Iterator[None]:
        """While this is entered, ``file`` (below ``src/userdp``) holds ``text``."""
        path = self.source / PACKAGE / file
        sound = path.read_text("utf-8")
        path.write_text(text, "utf-8")
        forget_compiled(path)
        try:
            yield
        finally:
            path.write_text(sound, "utf-8")
            forget_compiled(path)

    def pytest(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        patience: int,
        longest: float = LONGEST,
    ) -> Outcome:
        """Run tests over the copy, up to the first failure.

        Args:
            arguments: of pytest; a plugin among them reports the failure.
            environment: of the run.
            patience: seconds of processor time that it may take.
            longest: seconds on the clock that it may take.
        """
        report = self._folder / "report.json"
        report.unlink(missing_ok=True)
        environment = {
            "PYTHONPATH": str(self.source),
            # What a fault made hypothesis find must not be among the examples of other runs.
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._folder / "hypothesis"),
            REPORT: str(report),
            **environment,
        }
        begin = _spent()
        child = _FORKS.Process(target=_run_pytest, args=(arguments, environment, patience))
        child.start()
        _wait(child, longest)
        if child.is_alive():
            with suppress(ProcessLookupError):
                os.killpg(child.pid or 0, signal.SIGKILL)  # what the tests started too
            child.join()
        seconds = round(_spent() - begin, 1)
        code = child.exitcode
        if code is None or code < 0:  # a signal ended it
            return Outcome(code=None, failed={}, seconds=seconds)
        failed = json.loads(report.read_text()) if report.exists() else {}
        return Outcome(code=code, failed=failed, seconds=seconds)


def write_failure(test: str, error: pytest.ExceptionInfo[BaseException] | None) -> None:
    """Write the first failure of a run into the file that the environment names."""
    path = Path(os.environ[REPORT])
    if error is not None and not path.exists():
        values = {"test": test, "error": error.typename, "message": str(error.value)[:300]}
        path.write_text(json.dumps(values))


def import_all(libraries: Iterable[str]) -> None:
    """Import what forks shall find imported."""
    for library in libraries:
        importlib.import_module(library)


def _spent() -> float:
    """Processor time of all children that ended, in seconds: clocks run on while others compute."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _wait(child: multiprocessing.process.BaseProcess, longest: float) -> None:
    """Until it ends, or waits for what never comes, or has taken ``longest`` on the clock."""
    begin = since = time.monotonic()
    computed = -1
    while child.is_alive() and time.monotonic() - begin < longest:
        child.join(5)
        now = _ticks_of_session(child.pid or 0)
        if now != computed:
            computed, since = now, time.monotonic()
        elif time.monotonic() - since > _IDLE:
            return


def _ticks_of_session(leader: int) -> int:
    """Processor time of the processes of a session, as the kernel counts it."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            fields = path.read_text("ascii", "replace").rpartition(")")[2].split()
            if int(fields[3]) == leader:
                total += sum(map(int, fields[11:15]))
    return total


def _run_pytest(arguments: Sequence[str], environment: Mapping[str, str], patience: int) -> None:
    """In a fork that has not imported userdp yet: run the tests over the copy of the source."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (patience, patience))
    os.environ.update(environment)
    os.chdir(ROOT)
    sys.path[:] = [environment["PYTHONPATH"], str(ROOT), *sys.path]
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    always = ["-q", "-x", "-m", "", "--no-header", "-p", "no:xdist", "-p", "no:cacheprovider"]
    sys.exit(int(pytest.main([*always, *arguments])))
