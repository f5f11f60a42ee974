"""The program ``userdp``: it runs a line of arguments and gives an exit status."""

from __future__ import annotations

import os
import sys
import tomllib
import warnings
from collections.abc import Sequence
from pathlib import Path

from cyclopts import App
from cyclopts.config import Toml

from userdp.cli.commands import build_app, module_of, names
from userdp.errors import Interrupted, UseError, UserdpWarning
from userdp.hints import closest
from userdp.interrupts import terminable
from userdp.waiting import PASSIVE_WAITING


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    from userdp.cli.output import Answer, answer_of, fail, print_note, show, show_warning

    app = build_app()
    json = "--json" in arguments
    tokens = [token for token in arguments if token != "--json"]
    try:
        tokens = _take_config(app, tokens)
        with terminable(), warnings.catch_warnings():
            warnings.simplefilter("always", UserdpWarning)
            warnings.showwarning = show_warning
            answer = app(tokens)
            if answer is not None and not isinstance(answer, Answer):
                answer = answer_of(answer, module_of(tokens[0]))
            return 0 if answer is None else show(answer, json=json)
    except KeyboardInterrupt as error:
        from userdp.cli.go_on import last_words

        if (words := last_words(error, arguments)) is not None:
            print_note(words)
        return Interrupted.exit_status
    except Exception as error:  # sorted by `failure_of`; what it does not know is raised again
        from userdp.cli.failures import failure_of

        failure = failure_of(error, app, tokens)
        if failure is None:  # a fault of the program: its trace is what helps to mend it
            raise
        return fail(failure, json=json)


def main() -> None:
    """The console script."""
    _wait_passively()
    sys.exit(run(sys.argv[1:]))


def _wait_passively() -> None:
    """Have idle OpenMP threads sleep, unless the user chose how they wait.

    They spin by default, and on a busy machine they then take the cores from those that compute: a
    first step took 60 s in place of 3 s. OpenMP reads the variables once, when torch loads it.
    """
    if not PASSIVE_WAITING.keys() & os.environ.keys():
        os.environ.update(PASSIVE_WAITING)


def _take_config(app: App, tokens: list[str]) -> list[str]:
    """Take ``--config FILE`` off the line and let its values stand behind the options."""
    for position, token in enumerate(tokens):
        option, _, path = token.partition("=")
        if option != "--config":
            continue
        rest = tokens[position + 1 :]
        if not path:
            if not rest:
                raise UseError("--config needs a file")
            path, *rest = rest
        _require_config(Path(path))
        app.config = Toml(path, must_exist=True, search_parents=False)
        return tokens[:position] + rest
    return tokens


def _require_config(path: Path) -> None:
    """Refuse what is no configuration, and a section that no command would ever read."""
    hint = "it is a TOML file with a section for each command, as [train]"
    if not path.is_file():
        raise UseError(f"--config {path}: there is no such file", hint=hint)
    try:
        sections = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UseError(f"--config {path} is not TOML: {error}", hint=hint) from error
    for section in sections:
        if section not in names():
            close = closest(section, names())
            guess = "" if close is None else f"did you mean [{close}]? "
            raise UseError(
                f"--config {path} has a section or key {section!r}, and there is no such command: "
                "what it says would never be read",
                hint=guess + hint,
            )


if __name__ == "__main__":
    main()
