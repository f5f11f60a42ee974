"""The program ``userdp``: it runs one line of arguments, and gives an exit status.

A command that failed says what happened, why it matters and the way out; one that was interrupted
names the line that goes on. Only a fault of the program itself ends in a traceback.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from userdp.cli.command_line import COMMON, HELP, Command, command_of
from userdp.commands.progress import say
from userdp.core.environment import PASSIVE_WAITING
from userdp.core.errors import Interrupted, UserdpError, UserdpWarning, as_ours
from userdp.version import __version__


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    name = None
    try:
        common, line = COMMON.parse_known_args(arguments)
        if common.version or line in ([], ["store"]):
            print(__version__ if common.version else HELP)
            return 0
        name = command_of(line)
        command = Command(name, settings=not common.help)
        if common.help or common.settings:
            print(command.format_help(), end="")
            return 0
        from userdp.cli.output import show_answer  # loads libraries that help does without

        words = [*line[len(name.split()) :], *(f"--{one}" for one in common.set)]
        given = command.arguments(words, common.config)
        with warnings.catch_warnings(action="always", category=UserdpWarning):
            warnings.showwarning = lambda message, *place, **more: say(f"warning: {message}")
            return show_answer(command.function(**given), name, json=common.json)
    except KeyboardInterrupt as error:
        say_how_to_go_on(error, name, arguments)
        return Interrupted.exit_status
    except (UserdpError, OSError) as error:
        told = as_ours(error)
        if "--json" in arguments:
            with suppress(OSError):  # the output itself may be what failed
                print(json.dumps(told.to_dict()))
                return told.exit_status
        say(f"error: {told}")
        return told.exit_status


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
    cast(Any, sys.stdout).reconfigure(errors="backslashreplace")  # ε in Latin-1, say
    status = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError as error:  # whoever read it has gone, or its disk is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        say(f"error: the output could not be written: {error.strerror}")
        status = 1
    sys.exit(status)


def say_how_to_go_on(error: BaseException, command: str | None, arguments: Sequence[str]) -> None:
    """Print where an interrupt left things, and the line that goes on.

    Of several processes of a run only the first one says it. A command without ``--resume`` begins
    again, also where it ran another one that has it, as the demo does.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    stopped = error if isinstance(error, Interrupted) else Interrupted("")
    goes_on = stopped.resume and command and "resume" in Command(command).spelled
    line = [*arguments, *(["--resume"] if goes_on and "--resume" not in arguments else [])]
    way = "go on with" if goes_on else "run it again"
    say(f"interrupted {stopped.place}".strip() + f"; {way}: userdp {shlex.join(line)}")


if __name__ == "__main__":
    main()
