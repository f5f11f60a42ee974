"""A JSON Lines file that is only ever appended to, synced line by line, and chained by hashes.

Each line carries ``prev``, the hash of the line before it, so that an edited, dropped or
re-ordered line is noticed. A line that a crash cut short was never acknowledged: it is ignored when
the journal is read, and the next line is written over it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from userdp import files
from userdp.errors import FailureError, UseError
from userdp.files import sync
from userdp.ledger.shapes import require_shapes
from userdp.strict_json import parse

_START = "0" * 16


def read_entries(path: Path) -> list[dict[str, Any]]:
    """All complete entries, oldest first.

    Raises:
        UseError: there is no such file, it is not a journal, or its chain is broken.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UseError(f"cannot read the ledger {path}: {error.strerror}") from error
    entries, _ = _parse(path, data)
    return entries


def read_first(path: Path) -> dict[str, Any]:
    """The first entry alone; empty in a journal that has none yet.

    What follows it is neither read nor judged, so that a long journal costs no more than a short
    one, in time and in what stays in memory.

    Raises:
        UseError: there is no such file, or its first line is no journal's.
    """
    try:
        with path.open("rb") as file:
            line = file.readline()
    except OSError as error:
        raise UseError(f"cannot read the ledger {path}: {error.strerror}") from error
    if not line.endswith(b"\n"):
        return {}
    entry = _entry(path, 1, line.removesuffix(b"\n"), _START)
    require_shapes(path, [entry])
    return entry


def append_entries(
    path: Path,
    compose: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
    *,
    mode: int = files.SHAREABLE_FILE,
    noted: Callable[[bool], None] | None = None,
) -> None:
    """Append what ``compose`` makes of the entries so far; on the disk when this returns.

    No other process appends between the look and the write. A torn last line is written over;
    ``compose`` sees no entries in a journal that is new, or whose first line a crash cut short.
    What it raises is raised, and nothing appended. A new file has ``mode``.

    Args:
        path: of the journal.
        compose: from the entries so far to those that follow; none leaves the file untouched.
        mode: of a new file.
        noted: is called under the journal's lock: with True once all is on the disk, with False
            where the disk refused it.

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
        data = os.pread(descriptor, size, 0)
        entries, end = _parse(path, data)
        previous = _last_hash(data, end)
        text = b""
        for entry in compose(entries):
            line, previous = _chained(path, entry, previous)
            text += line
        if text:
            if not end:  # by whoever writes the first line: a kill may have come to who made it
                sync(path.parent)
            try:
                _write(descriptor, path, text, end)
            except FailureError:
                if noted is not None:
                    with suppress(FailureError):  # the first error is the one to be told
                        noted(False)
                raise
            # After the write: a kill must not leave the file as long as it was, and yet changed.
            if size > end + len(text):
                os.ftruncate(descriptor, end + len(text))
        if noted is not None:
            noted(True)
    finally:
        os.close(descriptor)


class JournalWriter:
    """Appends to a journal of which this process is the only writer, without reading it again.

    ``prev`` of the last line is kept, so that one append costs one write and one sync.
    """

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        _, end = _parse(path, data)
        if not end:
            raise UseError(f"the ledger {path} is empty: it never was begun")
        self._descriptor: int | None = os.open(path, os.O_RDWR)
        if end != len(data):
            os.ftruncate(self._descriptor, end)
        self._end = end
        self._previous = _last_hash(data, end)
        self._path = path

    def append(self, entry: dict[str, Any]) -> None:
        """Append one entry durably; `FailureError` (and no half line) if the disk refuses.

        `UseError` after `close`: the number of the descriptor may be another file's by then.
        """
        if self._descriptor is None:
            raise UseError(
                f"the run of {self._path} was closed: a step that it took now would be charged "
                "nowhere",
                hint="resume the run: resume=True, or --resume",
            )
        line, previous = _chained(self._path, entry, self._previous)
        _write(self._descriptor, self._path, line, self._end)
        self._end += len(line)
        self._previous = previous

    def close(self) -> None:
        """Close the file; nothing is pending. Twice does no harm."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@contextmanager
def exclusive(path: Path, *, refusal: FailureError) -> Iterator[None]:
    """Hold a lock file for as long as the block runs; raise ``refusal`` if another holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise refusal from error
        yield
    finally:
        os.close(descriptor)


class _Read(NamedTuple):
    """The complete lines of a journal, what they say, and the hash of the last."""

    lines: bytes = b""
    entries: tuple[dict[str, Any], ...] = ()
    last: str = _START


_read: dict[Path, _Read] = {}
"""By path, of the few journals that were read last. One command reads its store's ledger some
twenty times, and each run's line in it names what went before: in a store of many runs that is
megabytes."""

_FEW = 4
"""A command reads a run's ledger, and its store's; a sweep those of its trials, one by one."""


def _parse(path: Path, data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Entries of all complete lines, and the byte at which the last complete line ends.

    Lines that were read before, byte for byte, are not parsed again. Whoever gets entries may
    change them, but nothing that they hold.
    """
    end = data.rfind(b"\n") + 1
    known = _read.pop(path, _Read())
    if not data.startswith(known.lines):
        known = _Read()
    entries, previous = list(known.entries), known.last
    for number, line in enumerate(
        data[len(known.lines) : end].splitlines(), start=len(entries) + 1
    ):
        entries.append(_entry(path, number, line, previous))
        previous = _hash(line)
    require_shapes(path, entries, known=len(known.entries))
    _read[path] = _Read(data[:end], tuple(entries), previous)
    for other in list(_read)[:-_FEW]:
        _read.pop(other, None)
    return [dict(entry) for entry in entries], end


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


def _chained(path: Path, entry: dict[str, Any], previous: str) -> tuple[bytes, str]:
    """The line of an entry after the line of hash ``previous``, and the hash of its own.

    `UseError` for one that no reader would take: all lines before it would be lost with it.
    """
    line = files.json_text({**entry, "prev": previous}, path, finite=True).encode()
    return line + b"\n", _hash(line)


def _last_hash(data: bytes, end: int) -> str:
    return _hash(data[:end].rsplit(b"\n", 2)[-2]) if end else _START


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
