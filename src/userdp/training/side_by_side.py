"""``userdp train`` processes that run side by side, each on a device of its own.

A sweep's trials are such processes, and an audit's reference runs. Each has a folder, a ledger and
a generator of its own, so that nothing of one run reaches another but the processor's time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from userdp import files
from userdp.codec import encode
from userdp.errors import FailureError
from userdp.ledger import RunFolder
from userdp.ledger.folder import train_toml
from userdp.ledger.journal import exclusive
from userdp.plans import Plan
from userdp.training.config import PlainPlan, TrainConfig
from userdp.training.devices import seats

Launch = Callable[..., "subprocess.Popen[bytes]"]
"""Starts ``userdp ARGUMENTS``, as `launch` does."""


def launch(
    arguments: list[str], *, log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a child of this process.

    Args:
        arguments: of the command line.
        log: where its errors go.
        environment: of the child, over this process's own.
    """
    files.write_file(log, b"", mode=files.OPERATOR_FILE)
    with log.open("ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "userdp", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, **environment},
            # The terminal's Ctrl-C is for the caller, which asks its children to stop, once.
            start_new_session=True,
        )


class SideBySide:
    """At most ``jobs`` processes at a time; at the end of a ``with`` block those left are ended.

    Args:
        device: of all of them, see `userdp.training.devices.seats`. On a CPU they divide the cores.
        jobs: how many run at the same time.
        start: starts one; a process of the operating system by default.

    Attributes:
        free: the devices on which the next ones will compute.

    Raises:
        UseError: there is no such device, or not one for each.
    """

    def __init__(self, device: str, jobs: int, *, start: Launch | None = None) -> None:
        self.free = seats(device, jobs)
        self._running: dict[int, tuple[subprocess.Popen[bytes], str]] = {}
        self._start = start or launch
        self._environment: dict[str, str] = {}
        if jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
            self._environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // jobs))

    @property
    def running(self) -> int:
        """How many have not been seen to end."""
        return len(self._running)

    def start(self, number: int, arguments: list[str], *, log: Path) -> None:
        """Start ``userdp ARGUMENTS --device …`` on the first free device; call it ``number``."""
        device = self.free.pop(0)
        process = self._start(
            [*arguments, "--device", device], log=log, environment=self._environment
        )
        self._running[number] = process, device

    def ended(self) -> dict[int, int]:
        """The exit status of each process that has ended since this was last asked."""
        statuses = {number: one.poll() for number, (one, _) in self._running.items()}
        done = {number: status for number, status in statuses.items() if status is not None}
        # What just became free is the next to be taken: its device is warm.
        self.free[:0] = [self._running.pop(number)[1] for number in done]
        return done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process, _ in self._running.values():
            process.terminate()
        for process, _ in self._running.values():
            process.wait()


def settings(folder: Path, name: str, plan: Plan | PlainPlan, config: TrainConfig) -> list[str]:
    """Write what a run trains by to files of mode 0600; the options that name them.

    Args:
        folder: for the operator alone; made, where it is not there.
        name: of the files, without their ends.
        plan: of a run without privacy all of it is options, and no file.
        config: everything that privacy does not depend on.
    """
    files.operator_folder(folder)
    options = folder / f"{name}.toml"
    plain = {"plain": encode(plan)} if isinstance(plan, PlainPlan) else {}
    told = train_toml({"learning": encode(config), **plain})
    files.write_file(options, told.encode(), mode=files.OPERATOR_FILE)
    named = ["--config", str(options)]
    if plain:
        return named
    files.write_json(folder / f"{name}.json", encode(plan), mode=files.OPERATOR_FILE)
    return ["--plan", str(folder / f"{name}.json"), *named]


def train_arguments(
    store: Path,
    run: RunFolder,
    what: list[str],
    *,
    slot: str | None = None,
) -> list[str]:
    """The command line of a run: what its folder holds decides whether it begins or goes on.

    Args:
        store: trained on.
        run: where.
        what: from `settings`.
        slot: of a private selection.
    """
    arguments = ["train", str(store), "--out", str(run.path), *what]
    # Whoever starts several runs has judged their plans.
    arguments += ["--set", "run.allow_large_delta=true"]
    if slot is not None:
        arguments += ["--set", f"run.slot={slot}"]
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


def steps_done(run: RunFolder) -> int:
    """Attempts in a run's ledger, counted without reading them: for a progress bar."""
    try:
        return run.ledger.read_bytes().count(b'"kind":"attempt"')
    except OSError:
        return 0


def last_words(log: Path) -> str:
    """The error that a process ended with."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    said = [line for line in lines if line.startswith("error: ")]
    return (said or lines or ["it left no word"])[-1].removeprefix("error: ")[:500]
