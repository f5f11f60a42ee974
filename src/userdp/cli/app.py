"""The program ``userdp``: it runs a line of arguments and gives an exit status."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence

from userdp.cli.commands import (
    COMMON,
    NAMES,
    arguments_of,
    command_of,
    function_of,
    help_of,
    settings_of,
)
from userdp.cli.failures import fail, failure_of, last_words, show_warning
from userdp.core.environment import PASSIVE_WAITING
from userdp.core.errors import Interrupted, UseError, UserdpWarning
from userdp.core.hints import closest, likely
from userdp.core.interrupts import terminable
from userdp.version import __version__


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    json, command = "--json" in arguments, None
    try:
        common, line = COMMON.parse_known_args(arguments)
        command = command_of(line)
        if common.version:
            print(__version__)
            return 0
        if common.help or line in ([], ["store"]):
            print(help_of(command), end="")
            return 0
        if command is None:
            raise _no_command(line)
        if common.settings:
            print(settings_of(command), end="")
            return 0
        from userdp.cli.output import show_answer  # loads libraries that help does without

        with terminable(), warnings.catch_warnings():
            warnings.simplefilter("always", UserdpWarning)
            warnings.showwarning = show_warning
            given = arguments_of(command, line[command.count(" ") + 1 :], common.config)
            return show_answer(function_of(command)(**given), command, json=json)
    except KeyboardInterrupt as error:
        last_words(error, command, arguments)
        return Interrupted.exit_status
    except Exception as error:  # sorted by `failure_of`; what it does not know is raised again
        failure = failure_of(error, command)
        if failure is None:  # a fault of the program: its trace is what helps to mend it
            raise
        return fail(failure, json=json)


def main() -> None:
    """The console script.

    Idle OpenMP threads sleep, unless the user chose how they wait. They spin by default, and on a
    busy machine they then take the cores from those that compute: a first step took 60 s in place
    of 3 s. OpenMP reads the variables once, when torch loads it.
    """
    if not PASSIVE_WAITING.keys() & os.environ.keys():
        os.environ.update(PASSIVE_WAITING)
    # `peft` loads it wherever it is installed, and it then misses kernels that nothing here uses.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    sys.exit(run(sys.argv[1:]))


def _no_command(line: Sequence[str]) -> UseError:
    """The error of a line that begins with no command, with the one that was probably meant."""
    word = " ".join(line[: 2 if line[0] == "store" else 1])
    near = closest(word, NAMES) or closest(f"store {word}", NAMES)
    guess = likely(near and f"`userdp {near}`")
    return UseError(f"there is no command {word!r}", hint=f"{guess}see `userdp --help`")


if __name__ == "__main__":
    main()
