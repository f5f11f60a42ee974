"""What a command says when it was interrupted: where it stopped, and the line that goes on."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from userdp.errors import Interrupted

_RESUMED = ("train", "sweep", "federate")
"""Commands that go on with ``--resume``; others, such as the demo, may have such a one in them."""

_ONCE = ("--resume", "--charge-again")
"""Flags that are not repeated: the first is added anew; the second would charge the plan again."""

_AGAIN = {"demo": ("--overwrite",)}
"""Flags that a command needs to begin again in the folder that it has begun."""


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
    command = arguments[0] if arguments else ""
    message = error.message if isinstance(error, Interrupted) else "interrupted"
    if isinstance(error, Interrupted) and error.resume and command in _RESUMED:
        return f"{message}; go on with: {_line(arguments, '--resume', without=_ONCE)}"
    flags = _AGAIN.get(command, ())
    return f"{message}; run it again: {_line(arguments, *flags, without=flags)}"


def _line(arguments: Sequence[str], *flags: str, without: Sequence[str]) -> str:
    """The command that the user typed, with ``flags`` at its end."""
    kept = [word for word in arguments if word not in without]
    return shlex.join([*_program(), *kept, *flags])


def _program() -> list[str]:
    """What stands before the arguments; torchrun hides how it was started, but for one machine."""
    processes = os.environ.get("LOCAL_WORLD_SIZE")
    if "TORCHELASTIC_RUN_ID" not in os.environ or processes is None:
        return ["userdp"]
    return ["torchrun", "--nproc-per-node", processes, "-m", "userdp"]
