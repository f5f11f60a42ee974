"""Where a store's ledger lies, and whether it is the one that was begun there.

``ledger.json`` in the store's folder (0600) names the ledger, so that one that is missing is
noticed, and holds a `Note` of the file, so that one that was put back to an earlier state is. A
copy of a store is another file, and a store that was put back in place is one that somebody else
wrote into. Nothing can tell these from a store that was moved to another disk, so that neither is
refused; but claims say that they count on no other copy having been charged.

Of a ledger that several stores share a second note lies beside it, so that each store knows of it
what the one knew that was charged last; and the counters of its runs lie in ``NAME.runs``.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from userdp import files
from userdp.errors import UseError
from userdp.ledger.folder import LEDGER
from userdp.ledger.note import Note

PLACE = "ledger.json"
_WHAT = "where the ledger is"
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}")
_NONE = -1
"""The inode of no file: what has this one noted differs from every ledger."""


class Place:
    """The place of one store's ledger.

    Args:
        store: the store's folder.

    Attributes:
        ledger: the file of the ledger.
        runs: the folder of what is kept of open runs beside it.
        id: random, of the ledger.

    Raises:
        UseError: the ledger was begun, and is gone, or was put back to an earlier state.
    """

    def __init__(self, store: Path) -> None:
        self._path = store / PLACE
        files.sweep(store, PLACE)  # what a kill left of the note after the last line
        self._kept: dict[str, Any] = {}
        self.id = ""
        self._read()
        shared = self._kept.get("shared")
        self.ledger = Path(shared) if shared else store / LEDGER
        # Of a shared ledger by its name: beside it may lie runs, or another ledger's counters.
        self.runs = self.ledger.with_name(f"{self.ledger.name}.runs") if shared else store / "runs"
        self._beside = _beside(self.ledger) if shared else None
        if self._beside is not None:
            files.sweep(self._beside.parent, self._beside.name)
        if self.ledger.exists():
            self._require_whole()
        else:
            self.require_new()

    def counter(self, charge: str) -> Path:
        """The file that counts the attempts of a charge (`userdp.ledger.opening`).

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

    def require_new(self) -> None:
        """`UseError` if the ledger held something before; call where nothing is found in it.

        Another process may have begun it since: it is looked at once more, after the notes were.
        """
        if self._notes() and not _has_lines(self.ledger):
            raise UseError(
                f"the privacy ledger {self.ledger} is gone: what these people were charged is not "
                "known, so that nothing may be charged and nothing claimed",
                hint="prepare the store again; what was trained before is then not in its claims",
            )

    def _require_whole(self) -> None:
        if not all(note.begins(self.ledger) for note in self._notes()):
            raise _put_back(self.ledger)

    @staticmethod
    def require_shareable(store: Path, ledger: Path) -> None:
        """`UseError` if `share` would refuse."""
        shared = ledger.resolve()
        if shared.is_dir() or shared.is_relative_to(store.resolve()):
            raise UseError(
                f"{ledger} cannot be the ledger that several stores share: it must be a file, "
                "outside of the store",
                hint="name a file beside the stores: --ledger people.jsonl",
            )
        path = store / PLACE
        kept = files.read_json(path, what=_WHAT) if path.exists() else {}
        if kept.get("shared") == str(ledger.resolve()):
            return
        if kept or (store / LEDGER).exists():
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
        if (store / PLACE).exists():
            return
        ledger.resolve().parent.mkdir(parents=True, exist_ok=True)
        values = {"shared": str(ledger.resolve())}
        files.write_json(store / PLACE, values, mode=files.OPERATOR_FILE)

    def fix_id(self) -> str:
        """The id of the ledger, from now on also where it has no line yet."""
        if not self._kept.get("id"):
            self._keep(None)
        return self.id

    def take(self, begun_as: str | None) -> bool:
        """Note what is about to be written to; call it under the ledger's lock.

        Args:
            begun_as: the id in the ledger's first line; None if it has none yet.

        Returns:
            Whether something else than its writers made or changed the file since it was noted.

        Raises:
            UseError: the ledger has no line, and had some.
        """
        self._read()  # another process may have begun it
        if begun_as is None:
            self.require_new()
            if not self._kept.get("id"):
                self._keep(None)
            return False
        self._require_whole()
        moved = self._differs(begun_as)
        self.id = begun_as
        noted = Note.read(self._kept)
        if moved and noted is not None:  # a kill within the line that tells it must not hide it
            self._keep(replace(noted, inode=_NONE))
        return moved

    def elsewhere(self, begun_as: str) -> bool:
        """`take`'s answer, where nothing is about to be written; waits for the ledger's lock."""
        with self._locked(fcntl.LOCK_SH):
            self._read()
            return self._differs(begun_as)

    def settle(self) -> None:
        """Note the file as it is now, after it was written to; call it under the ledger's lock.

        A file whose first line the disk refused holds nothing, and nothing is noted of it: a note
        says that something was there.
        """
        note = Note.of(self.ledger)
        self._keep(note if note.bytes else None)

    def _differs(self, begun_as: str) -> bool:
        """Whether the ledger of this id is not the file that was noted."""
        # A kill right after the first line leaves no note of the file, and the id still tells.
        begins_to_share = self._beside is not None and not self._kept.get("id")
        other = self.id != begun_as and not begins_to_share
        return other or any(note.differs(self.ledger) for note in self._notes())

    def _locked(self, how: int) -> AbstractContextManager[None]:
        return _locked(self.ledger, how)

    def _read(self) -> None:
        exists = self._path.exists()
        self._kept = files.read_json(self._path, what=_WHAT) if exists else {}
        for name in ("id", "shared"):
            value = self._kept.get(name)
            if value is not None and not (isinstance(value, str) and files.may_hold_files(value)):
                raise UseError(
                    f"{self._path}, which says where the store's privacy ledger is, is damaged: "
                    f"{name} is {value!r:.80}",
                    hint="put back the file that was there",
                )
        self.id = self._kept.get("id") or secrets.token_hex(16)

    def _notes(self) -> list[Note]:
        """What was noted of the ledger: by this store, and of a shared one by whoever was last."""
        kept = [self._kept]
        if self._beside is not None and self._beside.exists():
            kept.append(files.read_json(self._beside, what=_WHAT))
        return [note for note in map(Note.read, kept) if note is not None]

    def _keep(self, note: Note | None) -> None:
        noted = {"inode": None, "bytes": 0, "head": None} if note is None else note.plain
        self._kept = {"id": self.id, **noted, "shared": self._kept.get("shared")}
        files.write_json(self._path, self._kept, mode=files.OPERATOR_FILE)
        if self._beside is not None and note is not None:
            files.write_json(self._beside, note.plain, mode=files.OPERATOR_FILE)


def _has_lines(ledger: Path) -> bool:
    return ledger.exists() and b"\n" in ledger.read_bytes()


def shared_elsewhere(ledger: Path) -> bool:
    """`Place.elsewhere` of a ledger that stores share, for whoever names the ledger and no store.

    False where no note lies beside it.

    Raises:
        UseError: the ledger was put back to an earlier state.
    """
    if not _beside(ledger).exists():
        return False
    with _locked(ledger, fcntl.LOCK_SH):
        note = Note.read(files.read_json(_beside(ledger), what=_WHAT))
        if note is not None and not note.begins(ledger):
            raise _put_back(ledger)
        return note is not None and note.differs(ledger)


def _beside(ledger: Path) -> Path:
    """Where the note of a ledger lies that several stores share."""
    return ledger.with_name(f"{ledger.name}.place")


@contextmanager
def _locked(ledger: Path, how: int) -> Iterator[None]:
    descriptor = os.open(ledger, os.O_RDONLY if how == fcntl.LOCK_SH else os.O_RDWR)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def _put_back(ledger: Path) -> UseError:
    return UseError(
        f"the privacy ledger {ledger} was put back to an earlier state, or written anew: it does "
        "not hold what these people were charged since",
        hint="prepare the store again; what was trained before is then not in its claims",
    )
