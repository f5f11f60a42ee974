"""What is remembered of a ledger's file, to know later whether it is still the same one.

The kernel sets a file's change time (``ctime``) whenever the file is written, cut, given another
mode, owner or link, and offers no call that sets it to a time of one's choice. That is what tells
a ledger that was *put back in place* (``cp -r backup/. store/``), with the note that was taken of
it then: both agree in all that they hold, and the file changed at another time than the note says.

What is detected: every program that writes into the file, replaces it, or changes its mode, owner
or links. What is not: whatever restores the time as well, such as a snapshot of a whole file
system or of a machine; and a file that is longer than the note says, since a process that was
killed between its line and the note leaves such a one: it is held against what it began with only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from userdp.codec import decode
from userdp.errors import UseError


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """A ledger's file, as it was when it was last written to.

    Args:
        inode: of the file.
        bytes: of its whole lines.
        head: SHA-256 of the last of them.
        changed: when it changed last, in nanoseconds; None in notes of before that was kept.
    """

    inode: int
    bytes: int
    head: str | None
    changed: int | None = None

    @classmethod
    def of(cls, ledger: Path) -> Self:
        """Of the file as it is now; call it under the ledger's lock."""
        with ledger.open("rb") as file:
            data = file.read()
            facts = os.fstat(file.fileno())
        whole = data.rfind(b"\n") + 1
        return cls(
            inode=facts.st_ino,
            bytes=whole,
            head=_head(data[:whole]),
            changed=facts.st_ctime_ns,
        )

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> Self | None:
        """The inverse of `plain`; None where nothing was noted yet.

        Raises:
            UseError: something was noted, and it is no note.
        """
        if kept.get("inode") is None:
            return None
        values = {one.name: kept.get(one.name) for one in fields(cls)}
        note = decode(cls, values, what="what was noted of the ledger")
        if note.bytes < 0:
            raise UseError(f"what was noted of the ledger says that it has {note.bytes} bytes")
        return note

    @property
    def plain(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)

    def begins(self, ledger: Path) -> bool:
        """Whether the file still begins with all that it held."""
        if self.head is None:
            return True
        if not ledger.is_file():
            return False
        with ledger.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self.bytes:
                return False
            data = file.read(self.bytes)
        return _head(data) == self.head

    def differs(self, ledger: Path) -> bool:
        """Whether it is another file, or something else than its ledger's writers changed it.

        Call it under the ledger's lock: a line that is being written has no note yet.
        """
        facts = ledger.stat()
        if facts.st_ino != self.inode:
            return True
        untouched = self.changed is None or facts.st_ctime_ns == self.changed
        return facts.st_size == self.bytes and not untouched


def _head(data: bytes) -> str | None:
    """The digest of the last line."""
    lines = data.splitlines()
    return hashlib.sha256(lines[-1]).hexdigest() if lines else None
