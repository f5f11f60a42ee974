"""What a reader does while it reads: the files it opens to write, the code it runs, its memory.

Python tells of these by its audit events, whoever asks for them: a library that unpickles is seen
as well. What C++ does beside Python (Arrow, DuckDB) is not; that is seen by what lies there later.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.faults.hostile.mutations import CANARY

_NEVER = frozenset(
    {
        "pickle.find_class", "os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.fork",
        "socket.connect", "socket.getaddrinfo", "socket.bind", "urllib.Request",
        "webbrowser.open", "ftplib.connect", "http.client.connect", "smtplib.connect",
    }
)  # fmt: skip
"""No file makes a reader do any of these."""
_CHANGES = frozenset(
    {
        "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate",
        "os.chmod", "os.chown", "os.utime", "shutil.rmtree", "shutil.move", "shutil.copyfile",
    }
)  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MIB = 2**20


class Watch:
    """Notes what happens within `around`, in the thread that is in it.

    Args:
        folder: all that is written lies below it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder.resolve())
        self._thread: int | None = None
        self._follows, self._starts = False, frozenset[str]()
        self.seen: list[str] = []
        sys.addaudithook(self._hook)  # for the life of the process: there is no way to take it out

    def move(self, folder: Path) -> None:
        """From now on all that is written lies below ``folder``."""
        self._folder = str(folder.resolve())

    @contextmanager
    def around(self, *, follows: bool, starts: frozenset[str]) -> Iterator[None]:
        """Note what happens in the block.

        Args:
            follows: paths that stand in files may be opened.
            starts: programs that may be started.
        """
        self.seen, self._follows, self._starts = [], follows, starts
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._thread is None or threading.get_ident() != self._thread:
            return
        if event in _NEVER:
            self.seen.append(f"{event}{arguments!r:.200}")
        elif event == "subprocess.Popen" and Path(str(arguments[0])).name not in self._starts:
            self.seen.append(f"started {arguments[0]!r:.200}")
        elif event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes):
                self._opened(os.fsdecode(path), write=bool((flags or 0) & _WRITES))
        elif event in _CHANGES:
            within = [one for one in arguments if isinstance(one, int) and one >= 0]
            for path in arguments:
                if isinstance(path, str | bytes | os.PathLike):
                    self._opened(_whole(os.fsdecode(path), within), write=True)

    def _opened(self, path: str, *, write: bool) -> None:
        if CANARY in path and not self._follows:
            self.seen.append(f"took a value for a path: {path!r:.200}")
        # Asked at each event, where Path takes ten times as long.
        inside = os.path.realpath(path).startswith((self._folder, "/dev/", "/proc/self/"))
        if write and not inside:
            self.seen.append(f"wrote outside of its folder: {path!r:.200}")


def _whole(path: str, within: list[int]) -> str:
    """A path, also where it is one within an open folder, whose number is the last argument."""
    if os.path.isabs(path) or not within:  # noqa: PTH117 (see `Watch._opened`)
        return path
    with contextlib.suppress(OSError):
        return f"{os.readlink(f'/proc/self/fd/{within[-1]}')}/{path}"  # noqa: PTH115 (likewise)
    return path


def forget_peak() -> None:
    """Let `peak` begin anew; without effect where the system has no such thing."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak() -> int:
    """The most memory since `forget_peak`, in MiB; 0 where the system does not tell."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return 0
    return int(found.group(1)) * 1024 // _MIB if found else 0
