"""What others may open of what was written, by the modes it was made with, and what it holds."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_OTHERS = 0o077


def open_to_others(folder: Path) -> set[str]:
    """Everything inside a folder that others could read, write or list, by its path in there.

    Nothing inside a closed folder is; the folder itself is taken to be open.
    """
    found: set[str] = set()
    for path in folder.iterdir():
        if not stat.S_IMODE(path.lstat().st_mode) & _OTHERS:
            continue
        found.add(path.name)
        if path.is_dir():
            found |= {f"{path.name}/{inner}" for inner in open_to_others(path)}
    return found


def holding(folder: Path, *marks: str | bytes) -> set[str]:
    """The places in a folder that hold one of the marks, in their bytes or in their names."""
    sought = [mark.encode() if isinstance(mark, str) else mark for mark in marks]
    found = set()
    for path in folder.rglob("*"):
        place = path.relative_to(folder).as_posix()
        text = place.encode() + (path.read_bytes() if path.is_file() else b"")
        if any(mark in text for mark in sought):
            found.add(place)
    return found


@contextmanager
def made_with(umask: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A umask, under which no mode is changed after the fact.

    What is closed at the end was closed when it was made: there was no moment at which somebody
    could have opened it and read on.
    """
    with monkeypatch.context() as patched:
        patched.setattr(os, "chmod", lambda *args, **kwargs: None)
        before = os.umask(umask)
        try:
            yield
        finally:
            os.umask(before)
