"""The program ``userdp``: it runs a line of arguments and gives an exit status."""

from __future__ import annotations

import os
import sys
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import Any

from userdp.cli.commands import build_app, command_of, help_of, module_of, names, options_of
from userdp.errors import Interrupted, UseError, UserdpWarning
from userdp.hints import closest, likely
from userdp.interrupts import terminable
from userdp.version import __version__
from userdp.waiting import PASSIVE_WAITING


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    json = "--json" in arguments
    tokens = [token for token in arguments if token != "--json"]
    command = command_of(tokens)
    if (told := _told_at_once(command, tokens)) is not None:
        print(told)
        return 0
    from userdp.cli.output import answer_of, fail, last_words, show, show_warning
    from userdp.commands.progress import say

    try:
        if tokens[0] == "--install-completion":
            build_app(names())(tokens)
            return 0
        if command is None:
            word = " ".join(tokens[: 2 if tokens[0] == "store" else 1])
            near = closest(word, names()) or closest(f"store {word}", names())
            raise UseError(
                f"no command stands before {word}"
                if word.startswith("-")
                else f"there is no command {word!r}",
                hint=likely(near and f"`userdp {near}`") + "see `userdp --help`",
            )
        module = module_of(command)
        if "--settings" in tokens and hasattr(module, "sections"):
            from userdp.commands.setting import listed

            show(listed(module.sections()))
            return 0
        with terminable(), warnings.catch_warnings():
            warnings.simplefilter("always", UserdpWarning)
            warnings.showwarning = show_warning
            tokens = _with_config(command, tokens)
            _require_known(command, tokens)
            return answer_of(build_app([command])(tokens), module, json=json)
    except KeyboardInterrupt as error:
        if (words := last_words(error, command, arguments)) is not None:
            say(words)
        return Interrupted.exit_status
    except Exception as error:  # sorted by `failure_of`; what it does not know is raised again
        from userdp.cli.failures import failure_of

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
    sys.exit(run(sys.argv[1:]))


def _told_at_once(command: str | None, tokens: Sequence[str]) -> str | None:
    """The answer to a line that needs no command: help, or the version."""
    if list(tokens) == ["--version"]:
        return __version__
    if not {"--help", "-h"} & {*tokens} and tokens not in ([], ["store"]):
        return None
    return help_of(command or ("store" if tokens[:1] == ["store"] else ""))


_EVERYWHERE = ("--json", "--config", "--help")
_ELSEWHERE = {
    "--batch-size": "--micro-batch",
    "--eps": "--epsilon",
    "--lr": "--learning-rate",
    "--noise": "--noise-multiplier",
}
"""Words of other tools, which are no misspelling of ours."""


def _require_known(command: str, tokens: Sequence[str]) -> None:
    """Refuse an option that there is none of, and name the one that was probably meant."""
    known = [*(one.name for one in options_of(command)), *_EVERYWHERE]
    for token in tokens:
        word = token.partition("=")[0]
        if not word.startswith("--") or word in known:
            continue
        guess = _ELSEWHERE.get(word)
        if guess not in known:
            field = word.removeprefix("--").replace("-", "_")
            sections: dict[str, Any] = getattr(module_of(command), "sections", dict)()
            places = [f"--set {at}.{field}=…" for at, fields in sections.items() if field in fields]
            guess = places[0] if places else closest(word, known)
        raise UseError(
            f"userdp {command} has no option {word}",
            hint=f"{likely(guess)}see `userdp {command} --help`",
        )


def _with_config(command: str, tokens: Sequence[str]) -> list[str]:
    """The line with what ``--config FILE`` says in place of it; options of the line override.

    A table of the command's section is a section of ``--set``, whose settings stand before those of
    the line.
    """
    line = [
        one
        for word in tokens
        for one in (word.split("=", 1) if word.startswith("--config=") else [word])
    ]
    if "--config" not in line:
        return line
    at, begin = line.index("--config"), command.count(" ") + 1
    if at + 1 == len(line):
        raise UseError("--config needs a file")
    path = line[at + 1]
    given = {word.partition("=")[0] for word in line}
    options = {one.field: one for one in options_of(command) if not one.place}
    words: list[str] = []
    for key, value in _section(Path(path), command).items():
        if isinstance(value, dict):
            for name, one in value.items():
                text = one if isinstance(one, str) else dumps(one)
                words += ("--set", f"{key}.{name}={text}")
            continue
        option = options.get(key.replace("-", "_"))
        if option is None:
            near = closest(key, options)
            raise UseError(
                f"{path} sets {key}, and userdp {command} has no such option",
                hint=f"{likely(near and repr(near))}see `userdp {command} --help`",
            )
        if option.name not in given:
            words += option.typed(value)
    return [*line[:begin], *words, *line[begin:at], *line[at + 2 :]]


def _section(path: Path, command: str) -> Mapping[str, Any]:
    """A command's section; what is no configuration, or would never be read, is refused."""
    hint = "it is a TOML file with a section for each command, as [train]"
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UseError(f"--config {path}: {error.strerror}", hint=hint) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UseError(f"--config {path} is not TOML: {error}", hint=hint) from error
    of_store = {f"store {name}": one for name, one in told.pop("store", {}).items()}
    sections = told | of_store
    for name, section in sections.items():
        if name not in names() or not isinstance(section, dict):
            near = closest(name, names())
            raise UseError(
                f"--config {path} has [{name.replace(' ', '.')}], and there is no such command: "
                "what it says would never be read",
                hint=likely(near and f"[{near.replace(' ', '.')}]") + hint,
            )
    found: Mapping[str, Any] = sections.get(command, {})
    return found


if __name__ == "__main__":
    main()
