"""The program ``userdp``: it runs one line of arguments, and gives an exit status.

A command that failed says what happened, why it matters and the way out; one that was interrupted
names the line that goes on. Only a fault of the program itself ends in a traceback.
"""

from __future__ import annotations

import errno
import json as json_library
import logging
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from userdp.cli.command_line import COMMON, NAMES, Command, command_of, list_of_commands
from userdp.commands.progress import say
from userdp.core.environment import PASSIVE_WAITING
from userdp.core.errors import (
    FailureError,
    Interrupted,
    UseError,
    UserdpError,
    UserdpWarning,
    closest,
    likely,
    ran_out_of_memory,
)
from userdp.version import __version__

_REFUSED = {
    errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EISDIR,
}  # fmt: skip
"""Refusals of the operating system that are no fault of the program."""
_RESUMED = ("train", "tune", "federate")
"""Commands that go on with ``--resume``; others, such as the demo, may run one of them."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    json, name = "--json" in arguments, None
    try:
        common, line = COMMON.parse_known_args(arguments)
        name = command_of(line)
        if common.version:
            print(__version__)
            return 0
        if common.help or line in ([], ["store"]):
            print(Command(name).help if name else list_of_commands(), end="")
            return 0
        if name is None:
            raise _no_command(line)
        command = Command(name)
        if common.settings:
            print(command.list_of_settings, end="")
            return 0
        from userdp.cli.output import show_answer  # loads libraries that help does without

        with warnings.catch_warnings():
            warnings.simplefilter("always", UserdpWarning)
            warnings.showwarning = _show_warning
            given = command.arguments(line[name.count(" ") + 1 :], common.config)
            return show_answer(command.function(**given), name, json=json)
    except KeyboardInterrupt as error:
        say_how_to_go_on(error, name, arguments)
        return Interrupted.exit_status
    except Exception as error:  # of any kind: what people can mend is told, the rest is raised
        failure = _failure_of(error)
        if failure is None:  # a fault of the program: its traceback is what helps to mend it
            raise
        if json:
            reason = {"error": failure.message, "hint": failure.hint}
            print(json_library.dumps({**reason, "status": failure.exit_status}))
        else:
            say(f"error: {failure}")
        return failure.exit_status


def main() -> None:
    """The console script.

    Idle OpenMP threads sleep, unless the user chose how they wait. They spin by default, and on a
    busy machine they then take the cores from those that compute: a first step took 60 s in place
    of 3 s. OpenMP reads the variables once, when torch loads it.
    """
    if not PASSIVE_WAITING.keys() & os.environ.keys():
        os.environ.update(PASSIVE_WAITING)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up, as Ctrl-C does
    # `peft` loads it wherever it is installed, and it then misses kernels that nothing here uses.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    sys.exit(run(sys.argv[1:]))


def say_how_to_go_on(
    error: KeyboardInterrupt, command: str | None, arguments: Sequence[str]
) -> None:
    """Print where an interrupt left things, and the line that goes on.

    Of several processes of a run only the first one says it.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    place, line = "interrupted", f"userdp {shlex.join(arguments)}"
    if isinstance(error, Interrupted):
        place = f"interrupted {error.place}"
        if error.resume and command in _RESUMED:
            say(f"{place}; go on with: {line.replace(' --resume', '')} --resume")
            return
    say(f"{place}; run it again: {line}")


def _failure_of(error: Exception) -> UserdpError | None:
    """An error as a message for people; None for a fault of the program itself."""
    if isinstance(error, UserdpError):
        return error
    if isinstance(error, OSError) and error.errno in _REFUSED:
        where = f" ({error.filename})" if error.filename else ""
        message = f"the machine refused: {error.strerror}{where}"
        way_out = "check the disk, free some space there, or choose another place with --out"
        return FailureError(message, hint=way_out)
    if ran_out_of_memory(error):  # its words tell how much: the size of a cohort, say
        return FailureError(
            "memory ran out; what was charged before stays charged",
            hint="go on, or begin again, with more memory for this process",
        )
    return None


def _show_warning(message: Warning | str, *others: Any, **options: Any) -> None:
    """As `warnings.showwarning`: ours without the line of code, others as they are."""
    if isinstance(message, UserdpWarning):
        say(f"warning: {message}")
    else:
        sys.stderr.write(warnings.formatwarning(message, *others[:3]))


def _no_command(line: Sequence[str]) -> UseError:
    """The error of a line that begins with no command, with the one that was probably meant."""
    word = " ".join(line[: 2 if line[0] == "store" else 1])
    near = closest(word, NAMES) or closest(f"store {word}", NAMES)
    guess = likely(near and f"`userdp {near}`")
    return UseError(f"there is no command {word!r}", hint=f"{guess}see `userdp --help`")


if __name__ == "__main__":
    main()
