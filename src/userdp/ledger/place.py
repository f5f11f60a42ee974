"""Where a store's ledger lies, and whether it is the one that was begun there.

``ledger.json`` in the store's folder (0600) names the ledger, so that one that is missing is
noticed, and remembers how far it was written, so that one that was put back to an earlier state is.
It also remembers the file itself (its inode): a copy of a store is another file. Nothing can tell a
copy from a store that was moved to another disk, so that neither is refused; but claims say that
they count on no other copy having been charged.
"""

from __future__ import annotations

import fcntl
import hashlib
import secrets
from pathlib import Path
from typing import Any

from userdp import files
from userdp.errors import UseError
from userdp.ledger.folder import LEDGER

PLACE = "ledger.json"


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
        self.runs = self.ledger.parent / "runs"
        if self.ledger.exists():
            self._require_whole()
        else:
            self.require_new()

    def require_new(self) -> None:
        """`UseError` if the ledger held something before; call where nothing is found in it."""
        if self._kept.get("inode") is not None:
            raise UseError(
                f"the privacy ledger {self.ledger} is gone: what these people were charged is not "
                "known, so that nothing may be charged and nothing claimed",
                hint="prepare the store again; what was trained before is then not in its claims",
            )

    def _require_whole(self) -> None:
        head = self._kept.get("head")
        if head is not None and self._head(self._kept["bytes"]) != head:
            raise UseError(
                f"the privacy ledger {self.ledger} was put back to an earlier state, or written "
                "anew: it does not hold what these people were charged since",
                hint="prepare the store again; what was trained before is then not in its claims",
            )

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
        kept = files.read_json(path, what="where the ledger is") if path.exists() else {}
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
            self._keep(inode=None)
        return self.id

    def take(self, begun_as: str | None) -> bool:
        """Note what is about to be written to; call it under the ledger's lock.

        Args:
            begun_as: the id in the ledger's first line; None if it has none yet.

        Returns:
            Whether the ledger is another file than when it was last written to.

        Raises:
            UseError: the ledger has no line, and had some.
        """
        self._read()  # another process may have begun it
        if begun_as is None:
            self.require_new()
            if not self._kept.get("id"):
                self._keep(inode=None)
            return False
        self._require_whole()
        # A kill right after the first line leaves no inode, and the id still tells.
        inode, known_as = self._kept.get("inode"), self.id
        self.id = begun_as
        if self._kept.get("shared") and not self._kept.get("id"):  # begins to share it
            return False
        return known_as != begun_as or (inode is not None and inode != self._inode())

    def elsewhere(self) -> bool:
        """Whether the ledger is another file than when it was last written to from here."""
        inode = self._kept.get("inode")
        if inode is None:
            return False
        return bool(inode != self._inode())

    def settle(self) -> None:
        """Remember the file as it is now, after a line was added."""
        with self.ledger.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # nobody is in the middle of a line
            self._keep(inode=self._inode())

    def _read(self) -> None:
        exists = self._path.exists()
        self._kept = files.read_json(self._path, what="where the ledger is") if exists else {}
        self.id = str(self._kept.get("id") or secrets.token_hex(16))

    def _inode(self) -> int:
        return self.ledger.stat().st_ino

    def _head(self, size: int) -> str | None:
        """The digest of the last of the lines in the ledger's first ``size`` bytes."""
        with self.ledger.open("rb") as file:
            data = file.read(size)
        lines = data.splitlines() if len(data) == size else []
        return hashlib.sha256(lines[-1]).hexdigest() if lines else None

    def _keep(self, *, inode: int | None) -> None:
        size = self.ledger.stat().st_size if inode is not None else 0
        self._kept = {
            "id": self.id,
            "inode": inode,
            "bytes": size,
            "head": self._head(size) if size else None,
            "shared": self._kept.get("shared"),
        }
        files.write_json(self._path, self._kept, mode=files.OPERATOR_FILE)
