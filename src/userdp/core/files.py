"""Files and folders that are there whole or not at all, with their mode from the first moment on.

What is being written lies beside its place, in a folder ``.partial-NAME-…`` (0700) that its process
has locked, and takes its place by one rename. The folder that a killed process left has no lock, so
that the next writer of the same name, or `sweep`, removes it.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from userdp.core.codec import parse, text_of
from userdp.core.errors import FailureError, UseError, UserdpError

TEMPORARY = ".partial-"
SHAREABLE_FILE = 0o644
OPERATOR_FILE = 0o600
OPERATOR_FOLDER = 0o700


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
def working_folder(place: Path, name: str) -> Iterator[Path]:
    """A new folder ``.partial-NAME-…`` in ``place``, for files that go with the end of the block.

    What a killed process left of an earlier one is removed.
    """
    sweep(place, glob.escape(name))
    folder = place / f"{TEMPORARY}{name}-{secrets.token_hex(4)}"
    with ExitStack() as ending:
        folder.mkdir(mode=OPERATOR_FOLDER)
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        with suppress(FailureError):  # a file system without locks, where nothing left is removed
            ending.enter_context(_locked(folder))
        yield folder


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A place for a file or a folder that becomes ``path`` when the block ends well."""
    with working_folder(path.parent, path.name) as folder:
        made = folder / path.name
        yield made
        for one in (*made.rglob("*"), made):
            sync(one)
        if made.is_dir() and path.exists():
            path.rename(folder / f"old {path.name}")
        made.rename(path)
        sync(path.parent)


@contextmanager
def whole_file(path: Path, *, mode: int = SHAREABLE_FILE) -> Iterator[IO[bytes]]:
    """A file to write that becomes ``path`` when the block ends well, and vanishes otherwise."""
    with _beside(path) as place:
        place.touch(mode=mode, exist_ok=False)
        with place.open("wb") as file:
            yield file


@contextmanager
def whole_folder(path: Path, *, mode: int = 0o755) -> Iterator[Path]:
    """A temporary folder that becomes ``path`` when the block ends well, and vanishes otherwise.

    What stood at ``path`` before is replaced at the very end.
    """
    with _beside(path) as place:
        place.mkdir(mode=mode)
        yield place


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
        return _object(path.read_bytes(), finite=finite)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UseError(f"cannot read {what} from {path}: {why}") from error


def _object(text: bytes, *, finite: bool) -> dict[str, Any]:
    values = parse(text, finite=finite)
    if not isinstance(values, dict):
        raise ValueError("it holds no JSON object")
    return values


def operator_folder(path: Path) -> None:
    """Make a folder that only its owner may enter; a folder that is there is closed to others.

    A new folder is never open: ``mkdir`` takes the mode, of which a umask only takes bits away.
    Missing folders above it are made as usual.
    """
    path.mkdir(mode=OPERATOR_FOLDER, parents=True, exist_ok=True)
    path.chmod(OPERATOR_FOLDER)


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
        UseError: a line is damaged.
    """
    values: list[dict[str, Any]] = []
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for number, line in enumerate(whole, start=1):
        try:
            values.append(_object(line, finite=False))
        except ValueError as error:
            raise UseError(f"line {number} of {path} is damaged: {error}") from error
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
        with suppress(FailureError), _locked(left):
            shutil.rmtree(left, ignore_errors=True)


def _locked(folder: Path) -> AbstractContextManager[int]:
    """Holds the lock of what a process is writing; `FailureError` if another process has it."""
    return exclusive(folder, refusal=FailureError("a living process writes it"))


def sync(path: Path) -> None:
    """Force a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
