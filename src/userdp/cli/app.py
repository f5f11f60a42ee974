"""The program ``userdp``: it runs a line of arguments and gives an exit status."""

from __future__ import annotations

import logging
import os
import sys
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from userdp.cli.commands import (
    NAMES,
    arguments_of,
    command_of,
    completions,
    function_of,
    help_of,
    sections_of,
)
from userdp.core.errors import Interrupted, UseError, UserdpWarning
from userdp.core.hints import closest, likely
from userdp.core.interrupts import terminable
from userdp.core.waiting import PASSIVE_WAITING
from userdp.version import __version__


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    json = "--json" in arguments
    tokens = [token for token in arguments if token != "--json"]
    command = command_of(tokens)
    if (told := _told_at_once(command, tokens)) is not None:
        print(told)
        return 0
    from userdp.cli.output import fail, failure_of, last_words, show, show_answer, show_warning
    from userdp.commands.progress import say
    from userdp.commands.setting import listed

    try:
        if command is None:
            word = " ".join(tokens[: 2 if tokens[0] == "store" else 1])
            near = closest(word, NAMES) or closest(f"store {word}", NAMES)
            guess = likely(near and f"`userdp {near}`")
            raise UseError(f"there is no command {word!r}", hint=f"{guess}see `userdp --help`")
        if "--settings" in tokens and (sections := sections_of(command)):
            show(listed(sections))
            return 0
        with terminable(), warnings.catch_warnings():
            warnings.simplefilter("always", UserdpWarning)
            warnings.showwarning = show_warning
            line = tokens[command.count(" ") + 1 :]
            given = arguments_of(command, line, lambda file: _section(file, command))
            return show_answer(function_of(command)(**given), command, json=json)
    except KeyboardInterrupt as error:
        if (words := last_words(error, command, arguments)) is not None:
            say(words)
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


def _told_at_once(command: str | None, tokens: Sequence[str]) -> str | None:
    """The answer to a line that calls no command: help, the version, or how a word may go on."""
    if list(tokens) == ["--version"]:
        return __version__
    if tokens[:1] == ["--complete"]:
        return "\n".join(completions(os.environ.get("COMP_LINE", "")))
    if not {"--help", "-h"} & {*tokens} and tokens not in ([], ["store"]):
        return None
    return help_of(command or ("store" if tokens[:1] == ["store"] else ""))


def _section(path: Path, command: str) -> Mapping[str, Any]:
    """A command's section of a file; what is no configuration, or is never read, is refused."""
    hint = "it is a TOML file with a section for each command, as [train]"
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UseError(f"--config {path}: {error.strerror}", hint=hint) from error
    except ValueError as error:
        raise UseError(f"--config {path} is not TOML: {error}", hint=hint) from error
    of_store = {f"store {name}": one for name, one in told.pop("store", {}).items()}
    sections = told | of_store
    for name, section in sections.items():
        if name not in NAMES or not isinstance(section, dict):
            near = closest(name, NAMES)
            raise UseError(
                f"--config {path} has [{name.replace(' ', '.')}], and there is no such command: "
                "what it says would never be read",
                hint=likely(near and f"[{near.replace(' ', '.')}]") + hint,
            )
    found: Mapping[str, Any] = sections.get(command, {})
    return found


if __name__ == "__main__":
    main()
