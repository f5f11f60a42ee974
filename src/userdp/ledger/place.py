"""Where a store's ledger lies, and the counters of its runs: how copies and roll-backs are told.

``ledger.json`` in the store's folder (0600) names the ledger, so that one that is missing is
noticed, and holds how far it was written, so that one that was put back to an earlier state is. A
copy of a store is another file. Nothing can tell it from a store that was moved to another disk, so
that neither is refused; but claims say that they count on no other copy having been charged.

Beside the ledger lies a small file for each run that was opened (of a ledger that several stores
share: in ``NAME.runs``). It is locked for as long as the run is open, so that a copy of the run's
folder is not trained at the same time, and it holds the number of attempts that were begun by *any*
folder of the run: each is counted there, on the disk, before it is charged in the run's own ledger.
So whatever is copied, put back or killed, all folders together take at most as many noisy steps as
were charged; what a folder that was put back has forgotten stays charged.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from userdp.core import files
from userdp.core.codec import decode, encode
from userdp.core.errors import FailureError, UseError
from userdp.ledger.folder import LEDGER

PLACE = "ledger.json"
_WHAT = "where the ledger is"
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}")
_AGAIN = "prepare the store again; what was trained before is then not in its claims"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    """What ledger.json holds.

    Args:
        id: of the ledger; None before it was begun.
        shared: the place of a ledger that several stores share.
        inode: of the ledger's file when this store last wrote into it.
        bytes: of its whole lines then.
        head: SHA-256 of the last of them.
    """

    id: str | None = None
    shared: str | None = None
    inode: int | None = None
    bytes: int = 0
    head: str = ""


class Place:
    """The place of one store's ledger.

    Attributes:
        ledger: the file of the ledger.
        runs: the folder of the counters beside it.
        id: random, of the ledger.

    Raises:
        UseError: the ledger was begun, and is gone, or was put back to an earlier state.
    """

    def __init__(self, store: Path) -> None:
        self._path = store / PLACE
        files.sweep(store, PLACE)  # what a kill left of the note after the last line
        self._kept = self._read()
        self.id = self._kept.id or secrets.token_hex(16)
        shared = self._kept.shared
        self.ledger = Path(shared) if shared else store / LEDGER
        # Of a shared ledger by its name: beside it may lie runs, or another ledger's counters.
        self.runs = self.ledger.with_name(f"{self.ledger.name}.runs") if shared else store / "runs"
        self.require_whole()

    @staticmethod
    def require_shareable(store: Path, ledger: Path) -> None:
        """`UseError` if `share` would refuse."""
        shared, path = ledger.resolve(), store / PLACE
        if shared.is_dir() or shared.is_relative_to(store.resolve()):
            raise UseError(
                f"{ledger} cannot be the ledger that several stores share: it must be a file, "
                "outside of the store",
                hint="name a file beside the stores: --ledger people.jsonl",
            )
        if path.exists() and _read(path).shared == str(shared):
            return
        if path.exists() or (store / LEDGER).exists():
            raise UseError(
                f"the store at {store} has a ledger already: what it holds would be lost",
                hint="name the shared ledger when the store is prepared",
            )

    @staticmethod
    def share(store: Path, ledger: Path) -> None:
        """Let ``store`` be charged in ``ledger``, which other stores of the same people name too.

        Raises:
            UseError: the store has a ledger already.
        """
        Place.require_shareable(store, ledger)
        if not (store / PLACE).exists():
            ledger.resolve().parent.mkdir(parents=True, exist_ok=True)
            kept = encode(_Kept(shared=str(ledger.resolve())))
            files.write_json(store / PLACE, kept, mode=files.OPERATOR_FILE)

    def counter(self, charge: str) -> Path:
        """The file that counts the attempts of a charge.

        Raises:
            UseError: the id of the charge, which may come from a folder that somebody else made,
                is no name of a file.
        """
        if _ID.fullmatch(charge) is None:
            raise UseError(
                f"{charge!r:.80} is no id of a charge: a file elsewhere would be written for it",
                hint="the ledger of this run was not written by userdp; train in a new --out",
            )
        return self.runs / charge

    def fix_id(self) -> str:
        """The id of the ledger, from now on also where it has no line yet."""
        if self._kept.id is None:
            self._keep(replace(self._kept, id=self.id))
        return self.id

    def require_whole(self) -> None:
        """`UseError` if the ledger held something before that it does not hold now."""
        kept = self._kept = self._read()
        if kept.inode is None:
            return
        if not _has_lines(self.ledger):
            raise UseError(
                f"the privacy ledger {self.ledger} is gone: what these people were charged is not "
                "known, so that nothing may be charged and nothing claimed",
                hint=_AGAIN,
            )
        with self.ledger.open("rb") as file:
            if _head(file.read(kept.bytes)) != kept.head:
                raise UseError(
                    f"the privacy ledger {self.ledger} was put back to an earlier state, or "
                    "written anew: it does not hold what these people were charged since",
                    hint=_AGAIN,
                )

    def is_other(self, begun_as: str) -> bool:
        """Whether the ledger, of this id, is another file than this store wrote into last."""
        kept = self._kept = self._read()
        # A store that begins to share a ledger knows neither of its id nor of its file.
        other_id = kept.id != begun_as and not (kept.shared and kept.id is None)
        other_file = kept.inode not in (None, self.ledger.stat().st_ino)
        return other_id or other_file

    def note(self, begun_as: str) -> None:
        """Note how far the ledger, of this id, was written; call it under the ledger's lock."""
        with self.ledger.open("rb") as file:
            data, inode = file.read(), os.fstat(file.fileno()).st_ino
        self.id, whole = begun_as, data.rfind(b"\n") + 1
        head = _head(data[:whole])
        self._keep(replace(self._kept, id=self.id, inode=inode, bytes=whole, head=head))

    def _read(self) -> _Kept:
        return _read(self._path) if self._path.exists() else _Kept()

    def _keep(self, kept: _Kept) -> None:
        self._kept = kept
        files.write_json(self._path, encode(kept), mode=files.OPERATOR_FILE)


def _read(path: Path) -> _Kept:
    kept = decode(_Kept, files.read_json(path, what=_WHAT), what=f"{_WHAT}, in {path}")
    if kept.shared is not None and not files.may_hold_files(kept.shared):
        raise UseError(f"{path} is damaged: no ledger can be where it says")
    return kept


def _has_lines(ledger: Path) -> bool:
    return ledger.is_file() and b"\n" in ledger.read_bytes()


def _head(data: bytes) -> str:
    """The digest of the last line."""
    lines = data.splitlines()
    return hashlib.sha256(lines[-1]).hexdigest() if lines else ""


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
        try:
            os.pwrite(self._descriptor, b"%020d" % attempts, 0)
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
