"""Files that are there whole or not at all, and readable by those who may."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

TEMPORARY = ".partial-"
SHAREABLE_FILE = 0o644
OPERATOR_FILE = 0o600
OPERATOR_FOLDER = 0o700


def write_file(path: Path, data: bytes, *, mode: int = SHAREABLE_FILE) -> None:
    """Write ``path`` atomically: temporary file, sync, rename. ``OSError`` leaves the old file."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    finally:
        sync(path.parent)


def new_operator_file(path: Path) -> IO[bytes]:
    """A file to write that only its owner could open, from the first moment on.

    What a killed process left at ``path`` is removed, not reused: its mode might be another, and
    whoever holds it open would read on.
    """
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OPERATOR_FILE)
    return os.fdopen(descriptor, "wb")


def write_json(path: Path, values: dict[str, Any], *, mode: int = SHAREABLE_FILE) -> None:
    """Write ``values`` as JSON, atomically."""
    write_file(path, (json.dumps(values, indent=2) + "\n").encode(), mode=mode)


def operator_folder(path: Path) -> None:
    """Make a folder that only its owner may enter; one that is there already is closed to others.

    It is never open, whatever the umask: ``mkdir`` takes the mode with it, and a umask only takes
    bits away. Folders above it that are missing are made as usual.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=OPERATOR_FOLDER, exist_ok=True)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & ~OPERATOR_FOLDER:
        path.chmod(mode & OPERATOR_FOLDER)


@contextmanager
def whole_folder(path: Path, *, mode: int = 0o755) -> Iterator[Path]:
    """A temporary folder that becomes ``path`` when the block ends well, and vanishes otherwise.

    What stood at ``path`` before is replaced, at the very end.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}")
    temporary.mkdir(mode=mode)
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                sync(file)
        sync(temporary)
        if path.exists():
            old = path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}")
            path.rename(old)
            temporary.rename(path)
            shutil.rmtree(old)
        else:
            temporary.rename(path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def append_line(path: Path, values: dict[str, Any]) -> None:
    """Append one JSON line to an operator-only file, as one write."""
    line = json.dumps(values, separators=(",", ":")).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, OPERATOR_FILE)
    try:
        before = os.fstat(descriptor).st_size
        if os.write(descriptor, line) != len(line):
            os.ftruncate(descriptor, before)
            raise OSError(28, os.strerror(28), str(path))
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove what a killed process left half-written in ``folder``."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Force a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
