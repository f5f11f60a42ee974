"""A kill before each change of a file in turn: for work so short that every moment can be tried."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

_CHANGES = {
    "os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate",
}  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def every_kill(
    folder: Path, *, make: Callable[[], object], work: Callable[[], object], step: int = 1
) -> Iterator[bool]:
    """Do ``work`` in forks of this process, each killed before one change more under ``folder``.

    Changes are those that Python tells by its audit events, before each: a file opened to write,
    renamed, removed or made. Call it in a process that has computed nothing: its threads would be
    missing in the forks. What was written stays, synced or not, as with any kill of a process.

    Args:
        folder: whose changes count.
        make: is called before each fork, and makes what the work begins with.
        work: is done in the fork.
        step: of so many changes one is a moment to be killed at.

    Yields:
        Whether the work was killed, when ``folder`` is as the kill left it; False at the very end.

    Raises:
        RuntimeError: the work ended by itself, and not well.
    """
    for number in count(1, step):
        make()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            _be(folder, number, work)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status not in (0, -signal.SIGKILL):
            raise RuntimeError(f"the work ended with {status}: see above")
        yield status != 0
        if status == 0:
            return


def run_apart(work: str | Callable[..., object], *arguments: object) -> list[list[str]]:
    """What work prints, by line and ";", in a process of its own, without threads.

    Args:
        work: a script, or a function of a module, which is called with the arguments as words.
    """
    script = work
    if not isinstance(script, str):
        module, name = script.__module__, script.__qualname__
        script = f"import sys; from {module} import {name}; {name}(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [line.split(";") for line in done.stdout.splitlines()]


def _be(folder: Path, at: int, work: Callable[[], object]) -> None:
    """The fork: it never returns."""
    left = at

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        changes = event in _CHANGES or (event == "open" and int(arguments[2] or 0) & _WRITES)
        if changes and any(_is_inside(one, folder) for one in arguments):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    status = 70
    try:
        os.fsync = lambda descriptor: None
        sys.addaudithook(hook)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _is_inside(path: object, folder: Path) -> bool:
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    # A relative name belongs to a folder that is open: only this one's are.
    place = os.fsdecode(path)
    return not place.startswith("/") or place.startswith(str(folder))
