"""A JSON Lines file that is only ever appended to, synced line by line, and chained by hashes.

Each line ends in ``prev``, the hash of the line before it, so that an edited, dropped or re-ordered
line is noticed. A line that a crash cut short was never acknowledged: it is ignored when the
journal is read, and the next line is written over it. Every line is a `userdp.ledger.lines.Line`,
encoded and decoded by `userdp.core.codec`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from userdp.core import files
from userdp.core.codec import decode, encode, parse, text_of
from userdp.core.errors import FailureError, UseError
from userdp.ledger.lines import Line

_START = "0" * 16
_LINE = re.compile(rb'(\{.+),"prev":"([0-9a-f]{16})"\}')


class Tail(NamedTuple):
    """Where a journal ends: the bytes of its complete lines, and the hash of the last one."""

    end: int = 0
    head: str = _START


class Read(NamedTuple):
    """The complete lines of a journal, oldest first; their bytes; and where they end."""

    lines: tuple[Any, ...] = ()
    data: bytes = b""
    tail: Tail = Tail()

    def holds(self, head: str) -> bool:
        """Whether one of the lines has this hash; or there was no line when it was noted."""
        later = f'"prev":"{head}"'.encode()  # in what a line says every quote is escaped
        return head in (_START, self.tail.head) or later in self.data


def read(path: Path) -> Read:
    """All complete lines; none if there is no such file.

    Raises:
        UseError: it cannot be read, it is no journal, or its chain is broken.
    """
    try:
        return _parse(path, path.read_bytes())
    except FileNotFoundError:
        return Read()
    except OSError as error:
        raise UseError(f"cannot read the ledger {path}: {error.strerror}") from error


def append(
    path: Path,
    compose: Callable[[Read], Sequence[Line]],
    *,
    after: Tail | None = None,
    mode: int = files.SHAREABLE_FILE,
) -> Tail:
    """Append what ``compose`` makes of the lines so far; on the disk when this returns.

    No other process appends between the look and the write. A torn last line is written over;
    ``compose`` sees no lines in a journal that is new, or whose first line a crash cut short.
    What it raises is raised, and nothing appended.

    Args:
        path: of the journal.
        compose: from the lines so far to those that follow; none leaves the file untouched.
        after: where the journal ends, if this process is its only writer: it is then not read
            again, so that an append costs one write and one sync.
        mode: of a new file.

    Raises:
        FailureError: the disk refused (the journal then still ends in its old last line).
    """
    try:
        descriptor = os.open(path, os.O_RDWR | (0 if after else os.O_CREAT), mode)
    except OSError as error:
        raise FailureError(f"cannot write the ledger {path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        before = Read(tail=after) if after else _parse(path, os.pread(descriptor, size, 0))
        (end, head), text = before.tail, b""
        for line in compose(before):
            one = _chained(line, head)
            text, head = text + one + b"\n", _hash(one)
        if not text:
            return before.tail
        if not end:  # by whoever writes the first line: a kill may have come to who made the file
            files.sync(path.parent)
        _write(descriptor, path, text, end)
        # After the write: a kill must not leave the file as long as it was, and yet changed.
        if size > end + len(text):
            os.ftruncate(descriptor, end + len(text))
        return Tail(end + len(text), head)
    finally:
        os.close(descriptor)


def _parse(path: Path, data: bytes) -> Read:
    lines, head, end = [], _START, data.rfind(b"\n") + 1
    for number, text in enumerate(data[:end].splitlines(), start=1):
        what, found = f"line {number} of {path}", _LINE.fullmatch(text)
        if found is None:
            raise UseError(f"{what} is not a ledger entry")
        if found[2].decode() != head:
            raise UseError(
                f"{what} does not follow from the line before it: the ledger was edited, so no "
                "epsilon can be claimed from it",
                hint="no older copy mends it: that would forget what was charged since. The models "
                "that it paid for have no claim; for another, prepare text of other people",
            )
        try:
            lines.append(_decoded(found[1] + b"}"))
        except ValueError as error:
            known = error if isinstance(error, UseError) else UseError(str(error))
            raise UseError(f"{what} is damaged: {known.message}", hint=known.hint) from error
        head = _hash(text)
    return Read(tuple(lines), data[:end], Tail(end, head))


@lru_cache(maxsize=2**14)
def _decoded(text: bytes) -> Line:
    """Whoever charges reads a ledger again; and a run's steps are nearly all the same line."""
    return decode(Line, parse(text), what="it")


def _chained(line: Line, head: str) -> bytes:
    """The text of a line after the line of hash ``head``.

    `UseError` for one that no reader would take: all lines before it would be lost with it.
    """
    return text_of({**encode(line), "prev": head}).encode()


def _write(descriptor: int, path: Path, text: bytes, end: int) -> None:
    """Write ``text`` at ``end``, on the disk when this returns; all of it, or nothing."""
    view, offset = memoryview(text), end
    try:
        while view:
            written = os.pwrite(descriptor, view, offset)
            view, offset = view[written:], offset + written
        os.fsync(descriptor)
    except OSError as error:
        os.ftruncate(descriptor, end)
        raise FailureError(
            f"cannot write the ledger {path}: {error.strerror}; what it would have charged for was "
            "not released",
            hint="free some disk space and resume the run",
        ) from error


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()[:16]
