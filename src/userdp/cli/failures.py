"""What is said of a command that failed, or was interrupted: what, why it matters, the way out."""

from __future__ import annotations

import errno
import json as json_library
import os
import re
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from userdp.cli.commands import options_of, sections_of
from userdp.commands.progress import say
from userdp.core.errors import FailureError, Interrupted, UserdpError, UserdpWarning
from userdp.core.out_of_memory import ran_out_of_memory

_REFUSED = {errno.EIO: "the disk or its connection fails: check it, and give the command again"}
"""What the system may answer whatever the program does, and the way out."""
for _number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EISDIR):
    _REFUSED[_number] = "free some space, or choose another place with --out"
_RESUMED = ("train", "tune", "federate")
"""Commands that go on with ``--resume``; others, such as the demo, may have such a one in them."""


def failure_of(error: Exception, command: str | None) -> UserdpError | None:
    """What to say of an error, in options; None of one that is a fault of the program itself."""
    if isinstance(error, UserdpError):
        options = {} if command is None else _typed(command)
        hint = error.hint and in_shell(error.hint, options)
        return type(error)(in_shell(error.message, options), hint=hint)
    if isinstance(error, OSError) and error.errno in _REFUSED:
        where = f" ({error.filename})" if error.filename else ""
        message = f"the machine refused: {error.strerror}{where}"
        return FailureError(message, hint=_REFUSED[error.errno])
    if ran_out_of_memory(error):  # its words tell how much: the size of a cohort, say
        return FailureError(
            "memory ran out; what was charged before stays charged",
            hint="go on, or begin again, with more memory for this process",
        )
    return None


def _typed(command: str) -> dict[str, str]:
    """What is typed to fill a field, by what messages call the field."""
    places = reversed([*sections_of(command).items()])  # of two settings of one name the first
    typed = {name: f"{at}.{name}" for at, fields in places for name in fields}
    return typed | {one.field: one.name for one in options_of(command) if not one.place}


def in_shell(text: str, options: Mapping[str, str]) -> str:
    """A message for who typed a command: what it calls by a field's name becomes the option.

    A name of several words is the option wherever it stands by itself; a name of one word, which
    may be a word of the sentence, only where it begins the message, or has its value in brackets.

    Args:
        text: the message.
        options: name of a field to the command's own option.

    >>> in_shell("lora_rank must be 1 or more", {"lora_rank": "--lora-rank"})
    '--lora-rank must be 1 or more'
    >>> in_shell("width (5) must be a multiple of the width of a head", {"width": "learning.width"})
    'learning.width (5) must be a multiple of the width of a head'
    """
    for name, option in options.items():
        if "_" in name:
            place = rf"(?<![-\w./\"'`=])(?<!the ){name}(?![\w(/\"'=.-])"
        else:
            place = rf"^{name}(?= must\b)|(?:^|(?<=\bof )|(?<=\bmost )){name}(?= \([\d.]+\))"
        text = re.sub(place, option, text)
    return text


def fail(failure: UserdpError, *, json: bool) -> int:
    """Print why a command failed, and return its exit status.

    Under ``--json`` it is an object on stdout, where who asked for one reads.
    """
    status = failure.exit_status
    if json:
        reason = {"error": failure.message, "hint": failure.hint, "status": status}
        print(json_library.dumps(reason))
    else:
        say(f"error: {failure.message}" + (f"\nhint: {failure.hint}" if failure.hint else ""))
    return status


def show_warning(message: Warning | str, *others: Any, **options: Any) -> None:
    """As `warnings.showwarning`: ours in the words of the command line, others as they are."""
    if isinstance(message, UserdpWarning):
        say(f"warning: {message.message}")
    else:
        sys.stderr.write(warnings.formatwarning(message, *others[:3]))


def last_words(error: KeyboardInterrupt, command: str | None, arguments: Sequence[str]) -> None:
    """Print where an interrupt left things, and the line that goes on.

    Of several processes of a run only the first one says it.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    place, line = "interrupted", f"userdp {shlex.join(arguments)}"
    if isinstance(error, Interrupted):
        place = error.message
        if error.resume and command in _RESUMED:
            # A further charge was made; repeated, it would charge the whole plan once more.
            line = line.replace(" --set run.charge_again=true", "").replace(" --resume", "")
            say(f"{place}; go on with: {line} --resume")
            return
    say(f"{place}; run it again: {line}")
