"""How many attempts of a run were begun, by all its folders: a small file for each run.

It lies beside the ledger of the people (of a ledger that several stores share: in ``NAME.runs``),
and is as many bytes long as attempts were begun by *any* folder of the run: each is counted there,
on the disk, before it is charged in the run's own ledger. So whatever is copied, put back or
killed, all folders together take at most as many noisy steps as were charged; what a folder that
was put back has forgotten stays charged. The file is locked for as long as the run is open, so that
a copy of the run's folder is not trained at the same time.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path

from userdp.core import files
from userdp.core.errors import FailureError, UseError


class Counter:
    """The attempts of one run, over all folders; held by one process, until `close`.

    Args:
        path: of the file.
        begun: whether the run was opened before, so that the file has to be there.

    Raises:
        FailureError: another process holds it, or the disk refused.
        UseError: the run was opened before, and the file is gone.
    """

    def __init__(self, path: Path, *, begun: bool) -> None:
        if begun and not path.exists():
            raise UseError(
                f"{path} is gone: how many steps this run has taken is not known to the store",
                hint="train again in another --out, with a plan and a budget of its own",
            )
        in_use = FailureError(
            f"the run of {path} is in use by another process: a copy of its folder would spend "
            "steps that only one of them charges",
            hint="wait for it, or choose another --out",
        )
        files.operator_folder(path.parent)
        self._path, self._process = path, os.getpid()
        self._lock = ExitStack()
        held = self._lock.enter_context(files.exclusive(path, refusal=in_use))
        self._descriptor: int | None = held
        self.attempts = os.fstat(held).st_size
        files.sync(path.parent)

    def count(self, attempts: int = 1) -> None:
        """Count so many attempts more, on the disk when this returns."""
        if os.getpid() != self._process:  # a fork inherits the lock, and would go on beside us
            raise FailureError(
                "this process is a copy (a fork) of the one that opened the run: its steps would "
                "be a second continuation at the price of one",
                hint="open the run in the process that takes its steps",
            )
        if self._descriptor is None:  # its number may be another file's by now
            raise UseError(
                f"the run of {self._path} was closed: a step that it took now would be charged "
                "nowhere",
                hint="resume the run: resume=True, or --resume",
            )
        try:
            os.pwrite(self._descriptor, b"." * attempts, self.attempts)
            os.fsync(self._descriptor)
        except OSError as error:
            raise FailureError(
                f"cannot write {self._path}: {error.strerror}; the step was not taken",
                hint="free some disk space and resume the run",
            ) from error
        self.attempts += attempts

    def close(self) -> None:
        """Let another process go on; twice does no harm."""
        self._lock.close()
        self._descriptor = None


def attempts_in(folder: Path) -> dict[str, int]:
    """The attempts that were begun, by run."""
    return {path.name: path.stat().st_size for path in _counters(folder)}


def open_runs(folder: Path) -> list[str]:
    """The runs that some process has open now, by the lock that it holds."""
    held = []
    for path in _counters(folder):
        with path.open("rb") as file:
            try:
                # Shared, so that of two who ask at once neither takes the other for a run.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                held.append(path.name)
    return held


def _counters(folder: Path) -> list[Path]:
    """The files of all runs, and none that a desktop or a copying program hid beside them."""
    return sorted(folder.glob("[!.]*"))
