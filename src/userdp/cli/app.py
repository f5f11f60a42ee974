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
from typing import Any

from userdp.cli.command_line import COMMON, HELP, Command, command_of
from userdp.commands.progress import say
from userdp.core.environment import PASSIVE_WAITING
from userdp.core.errors import FailureError, Interrupted, UserdpError, UserdpWarning
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
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserdpWarning)
            warnings.showwarning = _show_warning
            answer = command.function(**command.arguments(words, common.config))
            return show_answer(answer, name, json=common.json)
    except KeyboardInterrupt as error:
        say_how_to_go_on(error, name, arguments)
        return Interrupted.exit_status
    except (UserdpError, OSError) as error:  # all else is a fault: its traceback helps to mend it
        if isinstance(error, OSError) and error.errno is None:  # a library's, of no file
            raise
        failure = error if isinstance(error, UserdpError) else _refusal(error)
        reason = {"error": failure.message, "hint": failure.hint, "status": failure.exit_status}
        if "--json" in arguments:
            with suppress(OSError):  # the output itself may be what failed
                print(json.dumps(reason))
                return failure.exit_status
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
    way = "go on with" if goes_on else "run it again"
    more = ["--resume"] if goes_on and "--resume" not in arguments else []
    place = f"interrupted {stopped.place}".strip()
    say(f"{place}; {way}: userdp {shlex.join([*arguments, *more])}")


def _refusal(error: OSError) -> FailureError:
    """What the operating system refused, as a message for people."""
    where = f" ({error.filename})" if error.filename else ""
    return FailureError(
        f"the machine refused: {error.strerror or error}{where}",
        hint="check the disk, free some space there, or choose another place with --out",
    )


def _show_warning(message: Any, category: type[Warning], *place: Any, **others: Any) -> None:
    """As `warnings.showwarning`: ours without the line of code, others as they are."""
    ours = issubclass(category, UserdpWarning)
    say(f"warning: {message}" if ours else warnings.formatwarning(message, category, *place[:2]))


if __name__ == "__main__":
    main()
