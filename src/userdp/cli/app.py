"""The program ``userdp``: it runs a line of arguments and gives an exit status."""

from __future__ import annotations

import os
import sys
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cyclopts.config import Dict

from userdp.cli.commands import build_app, command_of, module_of, names
from userdp.errors import Interrupted, UseError, UserdpWarning
from userdp.hints import closest
from userdp.interrupts import terminable
from userdp.waiting import PASSIVE_WAITING


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    json = "--json" in arguments
    tokens = [token for token in arguments if token != "--json"]
    command = command_of(tokens)
    everything = tokens[:1] == ["--install-completion"]
    app = build_app(names() if everything else [command] if command else [])
    try:
        if command is None or "--help" in tokens:
            app(tokens)
            return 0
        from userdp.cli.output import answer_of, show, show_warning

        module = module_of(command)
        if "--settings" in tokens and hasattr(module, "sections"):
            from userdp.commands.setting import listed

            return show(listed(module.sections()))
        with terminable(), warnings.catch_warnings():
            warnings.simplefilter("always", UserdpWarning)
            warnings.showwarning = show_warning
            tokens, values, source = _with_config(command, tokens)
            app.config = Dict(values, use_commands_as_keys=False, source=source)
            return answer_of(app(tokens), module, json=json)
    except KeyboardInterrupt as error:
        from userdp.cli.output import last_words
        from userdp.commands.progress import say

        if (words := last_words(error, command, arguments)) is not None:
            say(words)
        return Interrupted.exit_status
    except Exception as error:  # sorted by `failure_of`; what it does not know is raised again
        from userdp.cli.failures import failure_of
        from userdp.cli.output import fail

        failure = failure_of(error, app, command, tokens)
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
    sys.exit(run(sys.argv[1:]))


def _with_config(
    command: str, tokens: Sequence[str]
) -> tuple[list[str], dict[str, Any], str | None]:
    """The line without ``--config FILE``, and what the file says of the command's options.

    A table of its section is a section of ``--set``, whose settings stand before those of the line.
    """
    for position, token in enumerate(tokens):
        option, equals, path = token.partition("=")
        if option != "--config":
            continue
        rest = [*tokens[position + 1 :]]
        if not equals and not rest:
            raise UseError("--config needs a file")
        path = path if equals else rest.pop(0)
        values, begin = dict(_section(Path(path), command)), command.count(" ") + 1
        sets = [
            word
            for name in [name for name, value in values.items() if isinstance(value, dict)]
            for key, value in values.pop(name).items()
            for word in ("--set", f"{name}.{key}={_as_json(value)}")
        ]
        return [*tokens[:begin], *sets, *tokens[begin:position], *rest], values, path
    return [*tokens], {}, None


def _as_json(value: Any) -> str:
    from json import dumps

    return value if isinstance(value, str) else dumps(value)


def _section(path: Path, command: str) -> Mapping[str, Any]:
    """A command's section; what is no configuration, or would never be read, is refused."""
    hint = "it is a TOML file with a section for each command, as [train]"
    if not path.is_file():
        raise UseError(f"--config {path}: there is no such file", hint=hint)
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UseError(f"--config {path} is not TOML: {error}", hint=hint) from error
    known = {name.partition(" ")[0] for name in names()}
    for section, value in told.items():
        if section not in known or not isinstance(value, dict):
            close = closest(section, known)
            guess = "" if close is None else f"did you mean [{close}]? "
            raise UseError(
                f"--config {path} has a section or key {section!r}, and there is no such command: "
                "what it says would never be read",
                hint=guess + hint,
            )
    for word in set(told.get("store", {})) - {name.partition(" ")[2] for name in names()}:
        raise UseError(
            f"--config {path} has a section [store.{word}], and there is no such command: what it "
            "says would never be read",
            hint=hint,
        )
    for word in command.split():
        told = told.get(word, {})
    return told


if __name__ == "__main__":
    main()
