"""One charge, one continuation: who may go on with a run, and how many attempts it has left.

Beside the ledger of the people lies a small file for each run that was opened. It is locked for as
long as the run is open, so that a copy of the run's folder is not trained at the same time, and it
holds the number of attempts that were begun by *any* folder of the run: each is counted there, on
the disk, before it is charged in the run's own ledger. So whatever is copied, put back or killed,
all folders together take at most as many noisy steps as were charged; what a folder that was put
back has forgotten stays charged.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Self

from userdp import files
from userdp.errors import FailureError, UseError

_ASKED = 0.5
"""Seconds that asking who holds a counter takes at most, on a busy machine too."""

_MOST_DIGITS = 32
"""Of a number of attempts; longer ones are no counter's."""


class Counter:
    """The attempts of one charge, over all folders; held by one process, until `close`.

    Args:
        path: of the file.
        begun: whether the run was opened before, so that the file has to be there.

    Raises:
        FailureError: another process holds it, or the disk refused.
        UseError: the run was opened before, and the file is gone or damaged.
    """

    def __init__(self, path: Path, *, begun: bool) -> None:
        self._path = path
        self._process = os.getpid()
        if begun and not path.exists():
            raise UseError(
                f"{path} is gone: how many steps this run has taken is not known to the store",
                hint="pay for the whole plan once more: --resume --set run.charge_again=true",
            )
        try:
            files.operator_folder(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, files.OPERATOR_FILE)
        except OSError as error:
            raise FailureError(f"cannot write {path}: {error.strerror}") from error
        self._descriptor: int | None = descriptor
        try:
            _lock(descriptor)
            self.attempts = int(os.pread(descriptor, _MOST_DIGITS, 0) or b"0")
        except OSError as error:
            os.close(descriptor)
            raise FailureError(
                f"the run of {path} is in use by another process: a copy of its folder would spend "
                "steps that only one of them charges",
                hint="wait for it, or choose another --out",
            ) from error
        except ValueError as error:
            os.close(descriptor)
            raise UseError(f"{path} is damaged: {error}") from error

    def count(self) -> None:
        """Count one attempt more, on the disk when this returns."""
        self._keep(self.attempts + 1)

    def begin_at(self, attempts: int) -> None:
        """Count from ``attempts`` on: what a further charge finds taken already."""
        if attempts > self.attempts:
            self._keep(attempts)

    def _keep(self, attempts: int) -> None:
        if os.getpid() != self._process:  # a fork inherits the lock, and would go on beside us
            raise FailureError(
                "this process is a copy (a fork) of the one that opened the run: its steps would "
                "be a second continuation at the price of one",
                hint="open the run in the process that takes its steps",
            )
        if self._descriptor is None:  # its number may be another file's by now
            raise UseError(f"{self._path} was closed, and counts no further steps")
        text = b"%020d" % attempts
        try:
            os.pwrite(self._descriptor, text, 0)
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise FailureError(
                f"cannot write {self._path}: {error.strerror}; the step was not taken",
                hint="free some disk space and resume the run",
            ) from error
        self.attempts = attempts

    def forget(self) -> None:
        """Remove the file of a charge that was refused."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let another process go on; twice does no harm."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _lock(descriptor: int) -> None:
    """Lock a counter, or raise `BlockingIOError` where another process holds it.

    One that only asks who holds it (`open_charges`) does so for a moment, which is waited for: else
    a run could not be opened while somebody else looks which runs are open.
    """
    until = time.monotonic() + _ASKED
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.01)
        else:
            return


def attempts_in(folder: Path) -> dict[str, int]:
    """The attempts that were begun, by charge; a damaged counter is none."""
    counted = {}
    for path in folder.glob("*"):
        try:
            text = path.read_bytes()
        except FileNotFoundError:  # its charge was refused just now
            continue
        counted[path.name] = int(text) if text.isdigit() and len(text) <= _MOST_DIGITS else 0
    return counted


def open_charges(folder: Path) -> list[str]:
    """The charges whose run some process has open now, by the lock that it holds."""
    held = []
    for path in sorted(folder.glob("*")):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # its charge was refused just now
            continue
        try:
            # Shared, so that of two who ask at once neither takes the other for a run.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            held.append(path.name)
        finally:
            os.close(descriptor)
    return held
