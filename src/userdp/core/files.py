"""Files and folders that are there whole or not at all, with their mode from the first moment on.

What is being written lies beside its place as ``.partial-NAME-…``, under a lock that its process
holds, and takes its place by one rename. What a killed process left has no lock, so that the next
writer of the same name, or `sweep`, removes it.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from userdp.core.codec import parse, text_of
from userdp.core.errors import FailureError, UseError, UserdpError, kind_of

TEMPORARY = ".partial-"
SHAREABLE_FILE = 0o644
OPERATOR_FILE = 0o600
OPERATOR_FOLDER = 0o700
_MADE_ANEW = {".html", ".md", ".png", ".pdf", ".svg", ".csv", ".txt", ".tsv"}
"""Pages, pictures and tables, which can be made again from what lies beside them."""


def require_new(path: Path, *, overwrite: bool, name: str = "") -> None:
    """`UseError` unless a file can be put at ``path`` and nothing is lost by that.

    The one rule for every file that a command writes, asked before any work is done or charged.

    Args:
        path: of the file.
        overwrite: what lies there may be replaced.
        name: a good name for the file, told where ``path`` is a folder.
    """
    if path.is_dir():
        raise UseError(
            f"{path} is a folder, and a file is to be written there",
            hint=f"name a file in it: {path / name}" if name else None,
        )
    if not path.parent.is_dir():
        raise UseError(f"there is no folder {path.parent} to put {path.name} in")
    if not overwrite and (path.exists() or path.is_symlink()):
        raise in_the_way(path)
    above = list(path.resolve().parents)[:4]
    kept = path.exists() and any((one / "ledger.jsonl").exists() for one in above)
    if kept and path.suffix.lower() not in _MADE_ANEW:
        raise UseError(
            f"{path} is part of a user store or of a run: writing there would destroy what tells "
            "what its people paid, and for which weights",
            hint="choose another place",
        )


def digest_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def in_the_way(path: Path, what: str = "a file") -> UseError:
    """The refusal to replace what lies at ``path``; ``what`` says what that is."""
    return UseError(
        f"there is {what} at {path} already, and writing there would lose it",
        hint="give --overwrite to replace it, or choose another place",
    )


@contextmanager
def whole_file(path: Path, *, mode: int = SHAREABLE_FILE) -> Iterator[IO[bytes]]:
    """A file to write that becomes ``path`` when the block ends well, and vanishes otherwise."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with _beside(path, lambda place: os.open(place, flags, mode)) as (temporary, descriptor):
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            yield file
        os.fsync(descriptor)
        temporary.replace(path)


def write_file(path: Path, data: bytes | memoryview, *, mode: int = SHAREABLE_FILE) -> None:
    """Write ``path`` atomically: temporary file, sync, rename.

    Raises:
        FailureError: the disk refused, or no file can be put there; ``path`` is what it was before.
    """
    try:
        with whole_file(path, mode=mode) as file:
            file.write(data)
    except OSError as error:
        raise FailureError(
            f"cannot write {path}: {error.strerror}; what was there is unchanged",
            hint="free some space, or choose another place",
        ) from error


def write_json(path: Path, values: Mapping[str, Any], *, mode: int = SHAREABLE_FILE) -> None:
    """Write ``values`` as one JSON object, as `write_file` does.

    What must be finite was refused by `core.codec.encode` before; a checkpoint may hold a NaN.
    """
    write_file(path, f"{text_of(values, finite=False, indent=2)}\n".encode(), mode=mode)


def read_json(path: Path, *, what: str, finite: bool = True) -> dict[str, Any]:
    """The JSON object in a file; `UseError` if there is none.

    Args:
        path: of the file.
        what: names it in errors.
        finite: see `userdp.core.codec.parse`.
    """
    try:
        values = parse(path.read_bytes(), finite=finite)
        if not isinstance(values, dict):
            raise ValueError("it holds no JSON object")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UseError(f"cannot read {what} from {path}: {why}") from error
    return values


def operator_folder(path: Path) -> None:
    """Make a folder that only its owner may enter; a folder that is there is closed to others.

    A new folder is never open: ``mkdir`` takes the mode, of which a umask only takes bits away.
    Missing folders above it are made as usual.
    """
    path.mkdir(mode=OPERATOR_FOLDER, parents=True, exist_ok=True)
    path.chmod(OPERATOR_FOLDER)


@contextmanager
def whole_folder(path: Path, *, mode: int = 0o755) -> Iterator[Path]:
    """A temporary folder that becomes ``path`` when the block ends well, and vanishes otherwise.

    What stood at ``path`` before is replaced at the very end.
    """

    def make(place: Path) -> int:
        place.mkdir(mode=mode)
        return os.open(place, os.O_RDONLY)

    with _beside(path, make) as (temporary, _):
        yield temporary
        for inside in (*temporary.rglob("*"), temporary):
            sync(inside)
        old = _temporary(path)
        if path.exists():
            path.rename(old)
        temporary.rename(path)
        shutil.rmtree(old, ignore_errors=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}")


@contextmanager
def _beside(path: Path, make: Callable[[Path], int]) -> Iterator[tuple[Path, int]]:
    """A new temporary file or folder that is to become ``path``, and the descriptor that locks it.

    What a killed process left of an earlier try is removed.

    Args:
        path: in whose folder it lies.
        make: makes it, and opens it.
    """
    sweep(path.parent, glob.escape(path.name))
    descriptor = make(temporary := _temporary(path))
    try:
        with suppress(OSError):  # a file system without locks, where nothing left is removed
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield temporary, descriptor
        sync(path.parent)
    except BaseException:
        _remove(temporary)
        raise
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def append_line(path: Path, values: dict[str, Any]) -> None:
    """Append one JSON line to an operator-only file.

    What a crash or a full disk left of a line is cut off: the new line would be lost with it.
    """
    line = text_of(values, finite=False).encode() + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, OPERATOR_FILE)
    with os.fdopen(descriptor, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        end = file.seek(0, os.SEEK_END)
        if end and os.pread(descriptor, 1, end - 1) != b"\n":
            file.truncate(os.pread(descriptor, end, 0).rfind(b"\n") + 1)
        file.write(line)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines that `append_line` wrote; none if there is no file.

    A last line that a crash cut short is left out. Exact losses may be NaN.

    Raises:
        UseError: the file cannot be read or is damaged.
    """
    values: list[dict[str, Any]] = []
    if not path.exists():
        return values
    try:
        for line in path.read_bytes().split(b"\n")[:-1]:
            values.append(dict(parse(line, finite=False)))
    except OSError as error:
        raise UseError(
            f"cannot read {path}: {error.strerror}; it may be for the run's operator only",
            hint="ask its operator, or make a public report with --public",
        ) from error
    except (ValueError, TypeError) as error:
        damaged = f"line {len(values) + 1} of {path}"
        raise UseError(f"{damaged} is damaged: {kind_of(error)}") from error
    return values


@contextmanager
def exclusive(path: Path, *, refusal: UserdpError) -> Iterator[int]:
    """Hold the lock of a folder, or of a file that may be new, and yield its descriptor.

    The operating system closes the descriptors of a killed process, so that its locks go with it.

    Raises:
        UserdpError: ``refusal``, if another process holds the lock.
        FailureError: the disk refused.
    """
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    with ExitStack() as closing:
        try:
            descriptor = os.open(path, flags, OPERATOR_FILE)
            closing.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise refusal from error
        except OSError as error:
            raise FailureError(f"cannot write {path}: {error.strerror}") from error
        yield descriptor


def sweep(folder: Path, name: str = "*") -> None:
    """Remove what killed processes left half-written in ``folder``.

    What a living process is writing stays: it holds the lock.

    Args:
        folder: is looked through, and no folder in it.
        name: of the file or folder that was to be written; any by default.
    """
    for left in folder.glob(f"{TEMPORARY}{name}-{'[0-9a-f]' * 8}"):
        written = FailureError("a living process writes it")
        with suppress(FailureError, OSError), exclusive(left, refusal=written):
            _remove(left)


def sync(path: Path) -> None:
    """Force a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
