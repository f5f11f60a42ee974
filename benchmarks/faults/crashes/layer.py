"""A file layer that counts the changes of files under one folder, and lets one of them go wrong.

It stands between Python and the system: `os`, `open` and what is built on them (`pathlib`,
`shutil`). Libraries that write files by themselves (safetensors, Arrow, DuckDB) pass below it;
kills at random instants meet those.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

_WRITES = ("write", "pwrite")
_SYNCS = ("fsync", "fdatasync")
_BY_DESCRIPTOR = (*_WRITES, *_SYNCS, "ftruncate")
_BY_PATH = ("mkdir", "rmdir", "unlink", "remove", "truncate", "chmod", "utime")
_BY_TWO_PATHS = ("rename", "replace", "link", "symlink")
_CHANGING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_NEEDS_SPACE = (*_WRITES, "mkdir")
_MAY_FAIL = (*_BY_DESCRIPTOR, "rename", "replace", "unlink")


class Act(StrEnum):
    """What happens at an operation."""

    KILL = "kill"
    TEAR = "torn write"
    CUT = "power cut"
    FULL = "full disk"
    ERROR = "I/O error"
    READ_ONLY = "read-only folder"


LETHAL = frozenset({Act.KILL, Act.TEAR, Act.CUT})
_ERRNO = {Act.FULL: errno.ENOSPC, Act.ERROR: errno.EIO, Act.READ_ONLY: errno.EROFS}
_AT = {Act.TEAR: _WRITES, Act.FULL: _NEEDS_SPACE, Act.ERROR: _MAY_FAIL}
"""Acts that wait for an operation of their kind, from the chosen one on."""


class FileLayer:
    """Counts operations that change something under ``folder``; at one of them ``act`` happens.

    Args:
        folder: where operations count; others pass.
        act: what happens; None only counts.
        at: the number of the operation, from 1.

    Attributes:
        operations: how many there were.
    """

    def __init__(self, folder: Path, *, act: Act | None = None, at: int = 0) -> None:
        self.operations = 0
        self._folder = os.path.realpath(folder)
        self._act, self._at, self._refuses = act, at, False
        self._real: dict[str, Callable[..., Any]] = {
            name: getattr(os, name)
            for name in ("open", "close", "readlink", *_BY_DESCRIPTOR, *_BY_PATH, *_BY_TWO_PATHS)
        }
        self._real_open = io.open
        # Of each file that was written to and not synced since: its bytes before that, and a
        # descriptor of our own, by which they can be put back.
        self._unsynced: dict[tuple[int, int], tuple[int, bytes]] = {}

    def install(self) -> None:
        """Stand between this process and the system from now on; there is no way back."""
        for name in (*_BY_PATH, *_BY_TWO_PATHS):
            setattr(os, name, self._by_path(name))
        for name in _WRITES:
            setattr(os, name, self._writing(name))
        for name in (*_SYNCS, "ftruncate"):
            setattr(os, name, self._by_descriptor(name))
        # What stands in hands on whatever form a call has, unread.
        os.open = self._open
        io.open = builtins.open = self._open_file

    def is_synced(self, path: Path) -> bool:
        """Whether all that this process wrote to the file is on the disk."""
        facts = path.stat()
        return (facts.st_dev, facts.st_ino) not in self._unsynced

    def _is_inside(self, target: Any, folder: int | None = None) -> bool:
        read = self._real["readlink"]
        try:
            if isinstance(target, int):
                place = str(read(f"/proc/self/fd/{target}"))
            else:
                base = str(Path.cwd()) if folder is None else str(read(f"/proc/self/fd/{folder}"))
                place = os.path.join(base, os.fsdecode(target))  # noqa: PTH118
        except OSError:
            return False
        return place == self._folder or place.startswith(f"{self._folder}/")

    def _before(self, name: str) -> bool:
        """Count an operation; whether it is a write that is to be torn."""
        self.operations += 1
        act = self._act
        if act is None or self.operations < self._at:
            return False
        if self._refuses or name in _AT.get(act, (name,)):
            if act in LETHAL:
                if act is Act.TEAR:
                    return True
                self._die()
            self._refuse(act, name)
        return False

    def _refuse(self, act: Act, name: str) -> None:
        """A full disk stays full, and a read-only folder as it is; an I/O error comes once."""
        if act is Act.FULL and name not in _NEEDS_SPACE:
            return
        self._refuses = act is not Act.ERROR
        if act is Act.ERROR:
            self._act = None
        raise OSError(_ERRNO[act], os.strerror(_ERRNO[act]))

    def _die(self) -> None:
        if self._act is Act.CUT:
            for descriptor, before in self._unsynced.values():
                self._real["ftruncate"](descriptor, 0)
                self._real["pwrite"](descriptor, before, 0)
        os.killpg(os.getpgrp(), signal.SIGKILL)
        signal.pause()

    def _note_write(self, descriptor: int) -> None:
        facts = os.fstat(descriptor)
        key = facts.st_dev, facts.st_ino
        if key in self._unsynced:
            return
        # Opened anew: a copy of the descriptor would share its lock.
        own = self._real["open"](f"/proc/self/fd/{descriptor}", os.O_RDWR)
        self._unsynced[key] = own, os.pread(own, facts.st_size, 0)

    def _note_sync(self, descriptor: int) -> None:
        facts = os.fstat(descriptor)
        kept = self._unsynced.pop((facts.st_dev, facts.st_ino), None)
        if kept is not None:
            self._real["close"](kept[0])

    def _by_path(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            folder = options.get("dir_fd", options.get("src_dir_fd"))
            others = arguments[:1] if name in _BY_TWO_PATHS else ()
            if any(self._is_inside(one, folder) for one in (path, *others)):
                self._before(name)
            return real(path, *arguments, **options)

        return call

    def _by_descriptor(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(descriptor: int, *arguments: Any) -> Any:
            inside = self._is_inside(descriptor)
            if inside:
                self._before(name)
            result = real(descriptor, *arguments)
            if inside and name in _SYNCS:
                self._note_sync(descriptor)
            return result

        return call

    def _writing(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(descriptor: int, data: Any, *place: int) -> Any:
            if self._is_inside(descriptor):
                torn = self._before(name)
                self._note_write(descriptor)
                if torn:
                    real(descriptor, bytes(data)[: len(bytes(data)) // 2], *place)
                    self._die()
            return real(descriptor, data, *place)

        return call

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & _CHANGING_FLAGS and self._is_inside(path, dir_fd):
            self._before("open")
        descriptor: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        return descriptor

    def _open_file(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if not set(mode) & set("wax+") or not self._is_inside(file):
            return self._real_open(
                file, mode, buffering, encoding, errors, newline, closefd, opener
            )
        if not isinstance(file, int):
            self._before("open")
        raw = _Watched(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        raw.on_write = self._writing("write")
        if buffering == 0:
            return raw
        binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return binary
        return io.TextIOWrapper(binary, encoding, errors, newline, line_buffering=buffering == 1)


class _Watched(io.FileIO):
    """A file whose writes go through the layer."""

    on_write: Callable[[int, Any], int]

    def write(self, data: Any) -> int:
        return self.on_write(self.fileno(), data)
