"""What a command says when it was interrupted: where it stopped, and the line that goes on."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from userdp.errors import Interrupted

_ONCE = ("--resume", "--charge-again")
"""Flags that are not repeated: the first is added anew; the second would charge the plan again."""


def last_words(error: KeyboardInterrupt, arguments: Sequence[str]) -> str | None:
    """One line for stderr; None where another process of the same run says it.

    >>> line = ["train", "store", "--out", "my run"]
    >>> last_words(Interrupted("after step 24 of 100", resume=True), line)
    "interrupted after step 24 of 100; go on with: userdp train store --out 'my run' --resume"
    >>> last_words(KeyboardInterrupt(), ["stats", "store"])
    'interrupted; run it again: userdp stats store'
    """
    if os.environ.get("RANK", "0") != "0":
        return None
    if not isinstance(error, Interrupted):
        return f"interrupted; run it again: {command_line(arguments)}"
    if error.resume:
        return f"{error.message}; go on with: {command_line(arguments, '--resume')}"
    return f"{error.message}; run it again: {command_line(arguments)}"


def command_line(arguments: Sequence[str], *flags: str) -> str:
    """The command that the user typed, with ``flags`` at its end."""
    kept = [word for word in arguments if not flags or word not in _ONCE]
    return shlex.join([*_program(), *kept, *flags])


def _program() -> list[str]:
    """What stands before the arguments; torchrun hides how it was started, but for one machine."""
    processes = os.environ.get("LOCAL_WORLD_SIZE")
    if "TORCHELASTIC_RUN_ID" not in os.environ or processes is None:
        return ["userdp"]
    return ["torchrun", "--nproc-per-node", processes, "-m", "userdp"]
