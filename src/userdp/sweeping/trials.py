"""A trial is a `userdp train` process of its own, begun or resumed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from userdp import files
from userdp.errors import FailureError
from userdp.ledger import RunFolder
from userdp.ledger.journal import exclusive
from userdp.withheld import WithheldError


class Process(Protocol):
    """A process that was started; `subprocess.Popen` is one."""

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""

    def terminate(self) -> None:
        """Ask it to end."""

    def wait(self) -> int:
        """Wait for its end."""


class Launch(Protocol):
    """Starts ``userdp ARGUMENTS``, its errors going to the file ``log``."""

    def __call__(self, arguments: list[str], *, log: Path) -> Process: ...


def launcher(jobs: int) -> Launch:
    """Starts children of which ``jobs`` share the processor."""
    environment = dict(os.environ)
    if jobs > 1:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))

    def launch(arguments: list[str], *, log: Path) -> Process:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, files.OPERATOR_FILE)
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "userdp", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=descriptor,
                env=environment,
                # The terminal's Ctrl-C is for the sweep, which asks its trials to stop, once.
                start_new_session=True,
            )
        finally:
            os.close(descriptor)

    return launch


def train_arguments(
    store: Path,
    run: RunFolder,
    plan: Path,
    config: Path,
    *,
    slot: str | None,
    tensorboard: bool,
    device: str,
) -> list[str]:
    """The command line of a trial: what its folder holds decides whether it begins or goes on."""
    arguments = ["train", str(store), "--out", str(run.path), "--plan", str(plan)]
    arguments += ["--config", str(config), "--device", device]
    arguments.append("--allow-large-delta")  # the sweep has judged its plans
    if slot is not None:
        arguments += ["--slot", slot]
    if not tensorboard:
        arguments.append("--no-tensorboard")
    if run.begun:
        arguments.append("--resume")
    return arguments


def is_held(run: RunFolder) -> bool:
    """Whether a process trains in the folder, such as one that outlived its sweep."""
    if not run.lock.exists():
        return False
    held = FailureError(f"{run.path} is held")
    try:
        with exclusive(run.lock, refusal=held):
            return False
    except FailureError:
        return True


def last_words(log: Path) -> str:
    """The error that a process ended with."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return "it left no word"
    fault = f"{WithheldError.__module__}.{WithheldError.__qualname__}: "
    said = [line for line in lines if line.startswith(("error: ", fault))]
    last = (said or lines or ["it left no word"])[-1]
    return last.removeprefix("error: ").removeprefix(fault)[:500]
