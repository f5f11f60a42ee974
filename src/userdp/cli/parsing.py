"""The line of a command: its options, its help, and the arguments that it gives to a function.

Each command is a public function of `userdp`. Its signature says which options there are and which
values they take, the ``Args`` of its docstring what they mean. `argparse` reads the line and prints
the help. Only the command that is called is imported; the list of all commands takes their first
lines from the source text. So no help waits for a library that is slow to load.
"""

from __future__ import annotations

import argparse
import builtins
import inspect
import re
import textwrap
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import resources
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, NoReturn, get_args, get_type_hints

import userdp
from userdp import commands
from userdp.cli.setting import Setting, documented, fields_of, in_words
from userdp.commands.arguments import Section
from userdp.core.errors import UseError, closest, likely

COMMANDS = {
    "The main way": "prepare, plan, train, evaluate, generate, report, export, verify, account",
    "A store's life": "store stats, store budget, store settle, store members, store forget, "
    "store score, store dedup",
    "Beside it": "demo, tune, federate, audit, selftest",
}
"""By heading, in the order in which ``userdp --help`` shows them."""
NAMES = tuple(", ".join(COMMANDS.values()).split(", "))
_ABOUT = (
    "Fine-tune language models with user-level differential privacy.",
    "Every command takes --json (one JSON object on stdout, errors too) and --config FILE (TOML, "
    "a section for each command, which options override). Exit status: 0 done, 1 failed, 2 bad "
    "use, 130 interrupted: what was paid for is finished first, and the last line says how to go "
    "on.",
)
_SET = "a further setting, as SECTION.FIELD=VALUE"
_OF_OTHER_TOOLS = {"--batch-size": "--micro-batch", "--lr": "--learning-rate"}


class Parser(argparse.ArgumentParser):
    """`argparse`, whose mistakes are errors of ours."""

    def __init__(self, name: str = "", usage: str = "", about: Sequence[str] = ()) -> None:
        width = min(100, get_terminal_size().columns) - 1
        super().__init__(
            prog=f"userdp {name}".strip(),
            usage=textwrap.fill(f"userdp {usage}", width - 7),
            description="\n\n".join(textwrap.fill(one, width) for one in about),
            formatter_class=partial(
                argparse.RawDescriptionHelpFormatter, max_help_position=25, width=width
            ),
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            add_help=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong with a line."""
        raise UseError(message.removeprefix("argument "), hint=f"see `{self.prog} --help`")

    def describe(self, heading: str, meanings: Mapping[str, str]) -> None:
        """Add names and their meanings to the help, under a heading."""
        group = self.add_argument_group(heading)
        for name, meaning in meanings.items():
            group.add_argument(name, help=meaning.replace("%", "%%"))


COMMON = Parser()
"""Options of every command, which may stand anywhere on the line."""
COMMON.add_argument("--config", type=Path, default=None)
COMMON.add_argument("--help", "-h", action="store_true", default=False)
for _flag in ("--json", "--settings", "--version"):
    COMMON.add_argument(_flag, action="store_true", default=False)


def command_of(tokens: Sequence[str]) -> str | None:
    """The command that a line begins with, if it is one."""
    line = " ".join(tokens[:2]) + " "
    return next((name for name in NAMES if line.startswith(f"{name} ")), None)


def function_of(name: str) -> Callable[..., Any]:
    """The public function of a command."""
    function: Callable[..., Any] = getattr(userdp, name.split()[-1])
    return function


@cache
def _taken(name: str) -> tuple[dict[str, Setting], tuple[Any, ...]]:
    """The arguments of a command, and what annotates its ``**keywords``.

    That is dataclasses, whose fields are keywords, and the function that lists its sections. The
    first argument of a command has no name on a line.
    """
    function = function_of(name)
    hints = get_type_hints(function, localns=_Known(function.__globals__), include_extras=True)
    words, taken, groups = documented(function), dict[str, Setting](), ()
    for one in inspect.signature(function).parameters.values():
        if one.kind is one.VAR_KEYWORD:
            groups = get_args(hints[one.name])[1:]
        elif one.name != "progress":  # only a program has somebody to tell of it
            taken[one.name] = Setting(
                field=one.name,
                hint=hints[one.name],
                words=words[one.name],
                default=one.default,
                place=not taken and one.kind is not one.KEYWORD_ONLY,
            )
    return taken, groups


def sections_of(name: str) -> dict[str, Section]:
    """All that ``--set`` reaches in a command, by section.

    The command lists them in a function; or they are its arguments that are dataclasses.
    """
    taken, groups = _taken(name)
    for listed in filter(inspect.isfunction, groups):
        return dict(listed())
    return {
        one.field: Section(of=one.whole, whole=one.whole) for one in taken.values() if one.whole
    }


@cache
def options_of(name: str) -> tuple[Setting, ...]:
    """All that a line may give to a command."""
    taken, groups = _taken(name)
    options = dict(taken)
    for group in filter(inspect.isclass, groups):
        options |= fields_of(Section(of=group)) | options
    if any(one.whole for one in taken.values()) or any(map(inspect.isfunction, groups)):
        options["settings"] = Setting(field="settings", hint=Sequence[str], words=_SET)
    return tuple(one for one in options.values() if not one.whole)


class _Known(dict[str, Any]):
    """A module's names; one that it imports only for type checkers is anything."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


def parser_of(name: str) -> Parser:
    """The parser of a command. It demands nothing: a file may give what the line does not."""
    options, (about, example) = options_of(name), description_of(name)
    needed = [one.shown for one in options if one.needed]
    parser = Parser(name, " ".join([name, *needed, "[OPTIONS]"]), about)
    for one in options:
        how: dict[str, Any] = {"dest": one.field, "help": one.meaning.replace("%", "%%")}
        if bool in one.kinds:
            how |= {"action": "store_const", "const": not one.default}
        elif one.name == "--set":  # one each, so that what follows may be the store
            how |= {"action": "append", "metavar": "TEXT"}
        else:
            how |= {"metavar": one.shown.split()[-1]}
            how |= {"action": "extend", "nargs": "+"} if one.several else {}
        action = parser.add_argument(*([] if one.place else [one.name]), **how)
        action.required = False  # `arguments_of` asks for it, after it named what is misspelt
    parser.epilog = f"Try: {example}"
    if any(one.field == "settings" for one in options):
        parser.epilog = f"All else: userdp {name} --settings lists it.\n\n{parser.epilog}"
    return parser


def arguments_of(name: str, line: Sequence[str], file: Path | None = None) -> dict[str, Any]:
    """What a line, and the section of a file, give to the function of a command.

    Args:
        name: the command.
        line: the words behind its name.
        file: of ``--config``. The line overrides it; settings of both count.

    Raises:
        UseError: something is misspelt, missing, given twice or of another kind.
    """
    options, listed = {one.field: one for one in options_of(name)}, f"see `userdp {name} --help`"
    parsed, stray = parser_of(name).parse_known_args(line)
    if stray:
        raise _no_option(name, stray[0])
    typed, filed = vars(parsed), {} if file is None else section_in(file, name)
    if "settings" in typed and "settings" in filed:
        typed["settings"] = filed["settings"] + typed["settings"]
    words = [word.partition("=")[0] for word in line]
    for option in options.values():
        if words.count(option.name) > 1 and not option.several:
            raise UseError(f"{option.name} is given twice, and one is wanted", hint=listed)
        if option.needed and option.field not in filed | typed:
            raise UseError(f"userdp {name} needs {option.name}", hint=listed)
    given = filed | typed
    settings = settings_in(given.pop("settings", ()), name)
    return settings | {
        field: (one := options[field]).read(words, place=one.name, listed=listed)
        for field, words in given.items()
    }


def settings_in(given: Sequence[str], name: str) -> dict[str, Any]:
    """The arguments for a command that ``--set`` gives.

    Args:
        given: ``section.field=value`` each, a value as JSON has it or as plain text; of two for one
            field the last counts.
        name: the command.

    Raises:
        UseError: names a setting that there is none of, or whose value is of another type.
    """
    sections = sections_of(name) if given else {}
    known = {place: fields_of(section) for place, section in sections.items()}
    found: dict[str, dict[str, Any]] = {}
    for one in given:
        setting, equals, text = one.partition("=")
        place, _, field = setting.strip().replace("-", "_").partition(".")
        if not equals or field not in known.get(place, ()):
            names = [f"{place}.{field}" for place, fields in known.items() for field in fields]
            guess = likely(closest(f"{place}.{field}" if field else f".{place}", names))
            raise UseError(
                f"--set {one}: " + ("there is no such setting" if equals else "it has no value"),
                hint=f"{guess}each is section.field=value; --settings lists them",
            )
        found.setdefault(place, {})[field] = known[place][field].read(
            text.strip(), place=f"{place}.{field}", listed="--settings lists all"
        )
    arguments: dict[str, Any] = {}
    for place, values in found.items():
        make = sections[place].whole
        arguments |= values if make is None else {place: make(**values)}
    return arguments


def _no_option(name: str, word: str, *, where: str = "") -> UseError:
    """The error of an option that a command does not have, with the probable intention."""
    known = [*(one.name for one in options_of(name)), "--json", "--config", "--help"]
    field, guess = word.removeprefix("--").replace("-", "_"), _OF_OTHER_TOOLS.get(word)
    if guess not in known:
        sections = sections_of(name).items()
        at = next((at for at, section in sections if field in fields_of(section)), None)
        guess = closest(word, known) if at is None else f"--set {at}.{field}=…"
    hint = f"{likely(guess)}see `userdp {name} --help`"
    return UseError(f"{where}userdp {name} has no option {word}", hint=hint)


def section_in(file: Path, name: str) -> dict[str, Any]:
    """A command's section of a file, as a line would give it: words by the names of arguments."""
    hint = "it is a TOML file with a section for each command, as [train]"
    try:
        sections = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UseError(f"--config {file} cannot be read as TOML: {error}", hint=hint) from error
    sections |= {f"store {one}": section for one, section in sections.pop("store", {}).items()}
    for one, section in sections.items():
        if one not in NAMES or not isinstance(section, dict):
            near = closest(one, NAMES)
            raise UseError(
                f"--config {file} has [{one.replace(' ', '.')}], and there is no such command: "
                "what it says would never be read",
                hint=likely(near and f"[{near.replace(' ', '.')}]") + hint,
            )
    given: dict[str, Any] = {}
    for key, value in sections.get(name, {}).items():
        field = key.replace("-", "_")
        if isinstance(value, dict):
            settings = given.setdefault("settings", [])
            settings += [f"{key}.{one}={in_words(inner)}" for one, inner in value.items()]
        elif field not in (one.field for one in options_of(name)):
            raise _no_option(name, f"--{key.replace('_', '-')}", where=f"{file}: ")
        elif isinstance(value, bool):
            given[field] = value
        else:
            given[field] = [*map(in_words, value)] if isinstance(value, list) else in_words(value)
    return given


def first_line(name: str) -> str:
    """The first line of a command's docstring, read from the source text."""
    found = re.search(rf'(?m)^def {name.split()[-1]}\((?:.|\n)*?:\n    """(.+)$', _source())
    return found[1] if found else ""


@cache
def _source() -> str:
    files = (one for one in resources.files(commands).iterdir() if one.name.endswith(".py"))
    return "".join(one.read_text(encoding="utf-8") for one in files)


def description_of(name: str) -> tuple[list[str], str]:
    """The paragraphs of a command's docstring before its arguments, and its example."""
    text = inspect.getdoc(function_of(name)) or ""
    told, _, behind = text.partition("\nExample::\n")
    return [" ".join(part.split()) for part in told.split("\n\n")], behind.split("\n")[1].strip()


def help_of(name: str | None) -> str:
    """The help of a command, or the list of all."""
    if name is not None:
        return parser_of(name).format_help()
    parser = Parser(usage="COMMAND", about=_ABOUT)
    for heading, names in COMMANDS.items():
        parser.describe(heading, {one: first_line(one) for one in names.split(", ")})
    parser.epilog = "Try: userdp demo --out demo"
    return parser.format_help()


def settings_of(name: str) -> str:
    """The list of ``--settings``: all that ``--set`` reaches in a command, with meanings."""
    parser = Parser(usage=f"{name} --set SECTION.FIELD=VALUE")
    for section, kind in sections_of(name).items():
        meanings = {}
        for field, one in fields_of(kind).items():
            values = f": {', '.join(one.choices)}" if one.choices else ""
            meanings[f"{section}.{field}"] = one.meaning + values
        parser.describe(section, meanings)
    return parser.format_help()
