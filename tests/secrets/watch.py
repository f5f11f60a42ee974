"""Runs a call and keeps everything that it says, in whatever way it says it."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_paths: set[str] | None = None
_hooked = False


@dataclass
class Said:
    """What a call said, by the channel.

    Args:
        status: the exit status of a command; None of a call that raised.
        value: what a call returned.
        error: what it raised.
        channels: the words of each channel: stdout, stderr, trace, log, warnings, processes, names.
    """

    status: int | None = None
    value: Any = None
    error: BaseException | None = None
    channels: dict[str, bytes] = field(default_factory=dict)


def listen(call: Callable[[], Any], capfd: pytest.CaptureFixture[str], temporary: Path) -> Said:
    """Run ``call`` and return what it said.

    Args:
        call: gives an exit status, or a value.
        capfd: takes what is written to the file descriptors 1 and 2, by whichever code.
        temporary: an empty folder, which is TMPDIR for the time.
    """
    said = Said()
    capfd.readouterr()
    with _logging() as log, _warnings() as warned, _temporary(temporary), _watching() as seen:
        try:
            said.value = call()
            said.status = said.value if isinstance(said.value, int) else None
        except BaseException as error:
            if (
                isinstance(error, KeyboardInterrupt)
                and not type(error).__module__ == "userdp.errors"
            ):
                raise
            said.error = error
    printed = capfd.readouterr()
    left = [
        path.name.encode() + (path.read_bytes() if path.is_file() else b"")
        for path in sorted(temporary.rglob("*"))
    ]
    trace = "" if said.error is None else "".join(traceback.format_exception(said.error))
    said.channels = {
        "stdout": printed.out.encode(),
        "stderr": printed.err.encode(),
        "exception": b"" if said.error is None else f"{said.error}\n{said.error!r}".encode(),
        "trace": trace.encode(),
        "log": log.getvalue().encode(errors="surrogateescape"),
        "warnings": "\n".join(str(one.message) for one in warned).encode(),
        "processes": b"\n".join(sorted(seen.processes)),
        "names of files": "\n".join(sorted(seen.paths)).encode(errors="surrogateescape"),
        "what stays in TMPDIR": b"\n".join(left),
    }
    return said


@contextmanager
def _logging() -> Iterator[io.StringIO]:
    """All of Python's logs, at the most verbose level."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield stream
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


@contextmanager
def _warnings() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


@contextmanager
def _temporary(folder: Path) -> Iterator[None]:
    import tempfile

    folder.mkdir(parents=True, exist_ok=True)
    before = os.environ.get("TMPDIR"), tempfile.tempdir
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None
    try:
        yield
    finally:
        tempfile.tempdir = before[1]
        if before[0] is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before[0]


@dataclass
class _Seen:
    processes: set[bytes] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)


@contextmanager
def _watching() -> Iterator[_Seen]:
    """Command line and environment of every process below this one, and files that are made."""
    global _paths, _hooked
    seen, end = _Seen(), threading.Event()
    own = {path.name for path in Path("/proc").iterdir() if path.name.isdigit()}

    def look() -> None:
        while not end.is_set():
            seen.processes |= set(_of_children(own))
            end.wait(0.01)

    if not _hooked:
        sys.addaudithook(_hear)
        _hooked = True
    _paths = seen.paths
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        _paths = None
        end.set()
        thread.join()


def _of_children(before: set[str]) -> Iterator[bytes]:
    """Of processes that were not there before and descend from this one."""
    parents = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                parents[place.name] = (place / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
    for number in parents.keys() - before:
        at = number
        while at in parents and at != str(os.getpid()):
            at = parents[at]
        if at != str(os.getpid()):
            continue
        for name in ("cmdline", "environ"):
            try:
                yield (Path("/proc") / number / name).read_bytes().replace(b"\0", b" ")
            except OSError:
                continue


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    """Notes names of files and folders that Python makes; reading is nobody's concern."""
    if _paths is None:
        return
    if event == "open":
        path, _, flags = arguments
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if isinstance(path, str | bytes) and writes:
            _paths.add(os.fsdecode(path))
    elif event in ("os.mkdir", "os.rename", "os.link", "os.symlink"):
        _paths.update(os.fsdecode(one) for one in arguments[:2] if isinstance(one, str | bytes))
    elif event == "subprocess.Popen":
        _paths.add(repr(arguments[1]))
