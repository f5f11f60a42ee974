"""A JSON Lines file that is only ever appended to, synced line by line, and chained by hashes.

Each line carries ``prev``, the hash of the line before it, so that an edited, dropped or
re-ordered line is noticed. A line that a crash cut short was never acknowledged: it is ignored when
the journal is read, and the next line is written over it. Every line is a dataclass of a kind that
the journal knows (`userdp.ledger.lines`), encoded and decoded by `userdp.core.codec`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from userdp.core import files
from userdp.core.codec import decode, encode
from userdp.core.errors import FailureError, UseError
from userdp.core.strict_json import parse

Kinds = Mapping[str, type]
"""The classes of the lines of a journal, by their ``kind``; the first one opens it."""
_START = "0" * 16


def read(path: Path, *kinds: Kinds) -> tuple[list[Any], bytes]:
    """All complete lines, oldest first; and their bytes.

    Args:
        path: of the journal.
        kinds: of the journals that it may be, as its first line says.

    Raises:
        UseError: there is no such file, it is not a journal of these kinds, or its chain is broken.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UseError(f"cannot read the ledger {path}: {error.strerror}") from error
    read = _parse(path, data, *kinds)
    return list(read.lines), read.data


def read_entries(path: Path) -> list[dict[str, Any]]:
    """All complete lines as plain values, whatever their kinds; `UseError` as of `read`."""
    previous, entries = _START, []
    data = path.read_bytes()
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        entries.append(_entry(path, number, line, previous))
        previous = _hash(line)
    return entries


def append(
    path: Path,
    kinds: Kinds,
    compose: Callable[[list[Any]], Sequence[Any]],
    *,
    mode: int = files.SHAREABLE_FILE,
    written: Callable[[], None] | None = None,
) -> None:
    """Append what ``compose`` makes of the lines so far; on the disk when this returns.

    No other process appends between the look and the write. A torn last line is written over;
    ``compose`` sees no lines in a journal that is new, or whose first line a crash cut short.
    What it raises is raised, and nothing appended.

    Args:
        path: of the journal.
        kinds: of its lines.
        compose: from the lines so far to those that follow; none leaves the file untouched.
        mode: of a new file.
        written: is called under the journal's lock once all new lines are on the disk.

    Raises:
        FailureError: the disk refused (the journal then still ends in its old last line).
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    except OSError as error:
        raise FailureError(f"cannot write the ledger {path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        before = _parse(path, os.pread(descriptor, size, 0), kinds)
        end, previous, text = len(before.data), before.last, b""
        for line in compose(list(before.lines)):
            chained, previous = _chained(path, line, previous)
            text += chained
        if not text:
            return
        if not end:  # by whoever writes the first line: a kill may have come to who made it
            files.sync(path.parent)
        _write(descriptor, path, text, end)
        # After the write: a kill must not leave the file as long as it was, and yet changed.
        if size > end + len(text):
            os.ftruncate(descriptor, end + len(text))
        if written is not None:
            written()
    finally:
        os.close(descriptor)


class JournalWriter:
    """Appends to a journal of which this process is the only writer, without reading it again.

    ``prev`` of the last line is kept, so that one append costs one write and one sync.
    """

    def __init__(self, path: Path, kinds: Kinds) -> None:
        lines = _parse(path, path.read_bytes(), kinds)
        if not lines.data:
            raise UseError(f"the ledger {path} is empty: it never was begun")
        self._descriptor: int | None = os.open(path, os.O_RDWR)
        self._path, self._end, self._previous = path, len(lines.data), lines.last
        os.ftruncate(self._descriptor, self._end)

    def append(self, line: Any) -> None:
        """Append one line durably; `FailureError` (and no half line) if the disk refuses.

        `UseError` after `close`: the number of the descriptor may be another file's by then.
        """
        if self._descriptor is None:
            raise UseError(
                f"the run of {self._path} was closed: a step that it took now would be charged "
                "nowhere",
                hint="resume the run: resume=True, or --resume",
            )
        text, previous = _chained(self._path, line, self._previous)
        _write(self._descriptor, self._path, text, self._end)
        self._end += len(text)
        self._previous = previous

    def close(self) -> None:
        """Close the file; nothing is pending. Twice does no harm."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@contextmanager
def exclusive(path: Path, *, refusal: FailureError) -> Iterator[None]:
    """Hold a lock file for as long as the block runs; raise ``refusal`` if another holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, files.OPERATOR_FILE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise refusal from error
        yield
    finally:
        os.close(descriptor)


class _Read(NamedTuple):
    """The complete lines of a journal, as bytes and as what they say; and the hash of the last."""

    data: bytes = b""
    lines: tuple[Any, ...] = ()
    last: str = _START


_read: dict[Path, _Read] = {}
"""By path, of the few journals that were read last: whoever charges reads the ledger once more
under its lock, and in a store of many runs it has megabytes."""
_FEW = 4


def _parse(path: Path, data: bytes, *journals: Kinds) -> _Read:
    """All complete lines; those that were read before, byte for byte, are not decoded again."""
    known = _read.pop(path, _Read())
    if not data.startswith(known.data):
        known = _Read()
    if known.lines:
        _kinds(path, known.lines[0].kind, journals)
    lines, previous = list(known.lines), known.last
    end = data.rfind(b"\n") + 1
    for number, text in enumerate(data[len(known.data) : end].splitlines(), len(lines) + 1):
        entry = _entry(path, number, text, previous)
        kinds = _kinds(path, lines[0].kind if lines else entry.get("kind"), journals)
        kind, what = entry.get("kind"), f"line {number} of {path}"
        if (
            not isinstance(kind, str)
            or kind not in kinds
            or (kind == next(iter(kinds))) != (not lines)
        ):
            raise UseError(f"{what} is of the kind {kind!r:.80}, which no such ledger has there")
        lines.append(decode(kinds[kind], entry, what=what))
        previous = _hash(text)
    read = _read[path] = _Read(data[:end], tuple(lines), previous)
    for other in list(_read)[:-_FEW]:
        del _read[other]
    return read


def _kinds(path: Path, first: object, journals: Sequence[Kinds]) -> Kinds:
    """The kinds of the journal that a first line of such a kind opens."""
    for kinds in journals:
        if first == next(iter(kinds)):
            return kinds
    needed = [next(iter(kinds)) for kinds in journals]
    if (first, needed) == ("store", ["run"]):
        raise UseError(
            f"{path.parent} is a user store, not a run: its ledger tells of all runs on it",
            hint="name the folder that a run was trained in",
        )
    raise UseError(
        f"{path} is no ledger of a {' or '.join(needed)}: its first line is of the kind "
        f"{first!r:.80}"
    )


def _entry(path: Path, number: int, line: bytes, previous: str) -> dict[str, Any]:
    """What a line says; `UseError` unless it follows the line of hash ``previous``."""
    try:
        entry: dict[str, Any] = parse(line)
        chained = entry.pop("prev")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UseError(f"line {number} of {path} is not a ledger entry") from error
    if chained != previous:
        raise UseError(
            f"line {number} of {path} does not follow from the line before it: the ledger was "
            "edited, so no epsilon can be claimed from it",
            hint="no older copy mends it: that would forget what was charged since. The models "
            "that it paid for have no claim; for another, prepare text of other people",
        )
    return entry


def _chained(path: Path, line: Any, previous: str) -> tuple[bytes, str]:
    """The text of a line after the line of hash ``previous``, and the hash of its own.

    `UseError` for one that no reader would take: all lines before it would be lost with it.
    """
    entry = {**encode(line), "prev": previous}
    text = files.json_text(entry, path, finite=True).encode()
    return text + b"\n", _hash(text)


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
