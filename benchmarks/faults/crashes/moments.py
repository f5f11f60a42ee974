"""A kill before each change of a file in turn: for work so short that every moment can be tried."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from benchmarks.faults.crashes import children
from benchmarks.faults.crashes.layer import Act, FileLayer


def every_kill(
    folder: Path, *, make: Callable[[], object], work: Callable[[], object]
) -> Iterator[bool]:
    """Do ``work`` in forks of this process, each killed before one change more under ``folder``.

    Call it in a process that has computed nothing: its threads would be missing in the forks. What
    was written stays, synced or not, as with any kill of a process, so that nothing is synced.

    Args:
        folder: whose changes count.
        make: is called before each fork, and makes what the work begins with.
        work: is done in the fork.

    Yields:
        Whether the work was killed, when ``folder`` is as the kill left it; False at the very end.

    Raises:
        RuntimeError: the work ended by itself, and not well.
    """
    os.fsync = lambda descriptor: None
    log = folder.with_name(f"{folder.name}.log")
    for number in count(1):
        make()

        def killed(at: int = number) -> int:
            FileLayer(folder, act=Act.KILL, at=at).install()
            work()
            return 0

        ended = children.run(killed, log=log)
        if not ended.killed and ended.status != 0:
            raise RuntimeError(log.read_text("utf-8"))
        log.unlink(missing_ok=True)
        yield ended.killed
        if not ended.killed:
            return
