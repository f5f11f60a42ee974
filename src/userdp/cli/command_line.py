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
from collections import ChainMap, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from importlib import resources
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, NoReturn, get_args, get_type_hints

import userdp
from userdp import commands
from userdp.cli.option_values import Value, dataclass_of, documented, fields_of
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
_OF_OTHER_TOOLS = {"batch_size": "micro_batch", "lr": "learning_rate"}


class Parser(argparse.ArgumentParser):
    """`argparse`, whose mistakes are errors of ours."""

    def __init__(self, name: str = "", about: Sequence[str] = ()) -> None:
        self.width = min(100, get_terminal_size().columns) - 1
        super().__init__(
            prog=f"userdp {name}".strip(),
            description="\n\n".join(textwrap.fill(one, self.width) for one in about),
            formatter_class=partial(
                argparse.RawDescriptionHelpFormatter, max_help_position=25, width=self.width
            ),
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            add_help=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong with a line."""
        raise UseError(message.removeprefix("argument "), hint=f"see `{self.prog} --help`")

    def help_with(self, *usage: str, epilog: str = "") -> str:
        """The help, with what follows the program's name, and with an end."""
        self.usage = textwrap.fill(" ".join([self.prog, *usage]), self.width - 7)
        self.epilog = epilog
        return self.format_help()


COMMON = Parser()
"""Options of every command, which may stand anywhere on the line."""
COMMON.add_argument("--config", type=Path, default=None)
COMMON.add_argument("--help", "-h", action="store_true", default=False)
for _flag in ("--json", "--settings", "--version"):
    COMMON.add_argument(_flag, action="store_true", default=False)


class Command:
    """A public function of `userdp`, as a line and a file give it its arguments.

    The annotation of its ``**keywords`` names dataclasses, whose fields are options, and a function
    that lists the sections of ``--set``. A command without such a function has a section for each
    argument that is a dataclass. The first argument of a command has no name on a line.

    Attributes:
        name: as it is typed, such as ``store stats``.
        function: that it calls.
        about: the paragraphs of its docstring before the arguments.
        example: a line to try.
        options: all that it takes outside of ``--set``, by the names of arguments.
        sections: lists what ``--set`` reaches.
        takes_settings: whether that is anything.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.function: Callable[..., Any] = getattr(userdp, name.split()[-1])
        told, _, behind = (inspect.getdoc(self.function) or "").partition("\nExample::\n")
        self.about = [" ".join(part.split()) for part in told.split("\n\n")]
        self.example = behind.split("\n")[1].strip()
        # It demands nothing: a file may give what the line does not.
        self._parser = Parser(name, self.about)
        self.options: dict[str, Value] = {}
        whole: dict[str, Section] = {}
        listed: Callable[[], Mapping[str, Section]] | None = None
        # A name that its module imports for type checkers only is anything.
        known = ChainMap(self.function.__globals__, vars(builtins), defaultdict(lambda: Any))
        hints = get_type_hints(self.function, localns=known, include_extras=True)
        words = documented(self.function)
        for one in inspect.signature(self.function).parameters.values():
            hint = hints[one.name]
            if one.kind is one.VAR_KEYWORD:
                for group in get_args(hint)[1:]:
                    if inspect.isclass(group):
                        for field, how in fields_of(Section(of=group)).items():
                            self._take(field, **how)
                    else:
                        listed = group
            elif kind := dataclass_of(hint):
                whole[one.name] = Section(of=kind, whole=kind)
            elif one.name != "progress":  # only a program has somebody to tell of it
                by_place = one.kind is not one.KEYWORD_ONLY and not self.options
                how = {"hint": hint, "words": words[one.name], "default": one.default}
                self._take(one.name, by_place=by_place, **how)
        self.sections = listed or (lambda: whole)
        self.takes_settings = bool(listed or whole)
        if self.takes_settings:  # one each, so that what follows may be the store
            further = "a further setting, as SECTION.FIELD=VALUE"
            self._parser.add_argument("--set", action="append", metavar="TEXT", help=further)

    def _take(self, field: str, *, by_place: bool = False, default: Any, **how: Any) -> None:
        """Add an option, unless there is one of this name."""
        if field not in self.options:
            spelled = f"--{'no-' if default is True else ''}{field.replace('_', '-')}"
            names = [] if by_place else [spelled]
            how |= {"dest": field, "action": Value, "default": default}
            option: Any = self._parser.add_argument(*names, **how)
            self.options[field] = option

    @property
    def help(self) -> str:
        """What ``--help`` prints."""
        needed = [one.shown for one in self.options.values() if one.needed]
        all_else = f"All else: userdp {self.name} --settings lists it.\n\n"
        epilog = f"{all_else if self.takes_settings else ''}Try: {self.example}"
        return self._parser.help_with(*needed, "[OPTIONS]", epilog=epilog)

    @cached_property
    def settings(self) -> dict[str, Value]:
        """All that ``--set`` reaches, by ``section.field``."""
        return {
            f"{place}.{field}": Value([], f"{place}.{field}", **how)
            for place, section in self.sections().items()
            for field, how in fields_of(section).items()
        }

    @property
    def list_of_settings(self) -> str:
        """What ``--settings`` prints: all that ``--set`` reaches, with meanings."""
        parser = Parser(self.name)
        for place in self.sections():
            group = parser.add_argument_group(place)
            for path, one in self.settings.items():
                if path.startswith(f"{place}."):
                    choices = one.choices_in_words and f": {one.choices_in_words}"
                    group.add_argument(path, help=f"{one.help}{choices}")
        return parser.help_with("--set SECTION.FIELD=VALUE")

    def arguments(self, line: Sequence[str], file: Path | None = None) -> dict[str, Any]:
        """What a line, and the command's section of a file, give to its function.

        Args:
            line: the words behind the command.
            file: of ``--config``. The line overrides it.

        Raises:
            UseError: something is misspelt, missing, given twice or of another kind.
        """
        parsed, stray = self._parser.parse_known_args(line)
        if stray:
            raise self._unknown(stray[0])
        typed, given = vars(parsed), {} if file is None else self._in_file(file)
        for one in typed.pop("set", ()):
            path, equals, text = one.partition("=")
            path = path.strip().replace("-", "_")
            if not equals or path not in self.settings:
                raise self._unknown(f"--set {path}")
            given[path] = text.strip()
        given |= typed
        for option in self.options.values():
            if option.needed and option.dest not in given:
                self._parser.error(f"userdp {self.name} needs {option.name}")
        arguments: dict[str, Any] = {}
        sections: dict[str, dict[str, Any]] = {}
        for path, value in given.items():
            one = self.options.get(path) or self.settings[path]
            place, _, field = path.rpartition(".")
            (sections.setdefault(place, {}) if place else arguments)[field] = one.read(value)
        for place, fields in sections.items():
            make = self.sections()[place].whole
            arguments = (fields if make is None else {place: make(**fields)}) | arguments
        return arguments

    def _in_file(self, file: Path) -> dict[str, Any]:
        """What its section of a file gives, by the names of arguments and settings."""
        given: dict[str, Any] = {}
        for key, value in sections_in(file).get(self.name, {}).items():
            key = key.replace("-", "_")
            if isinstance(value, dict):
                given |= {f"{key}.{one.replace('-', '_')}": inner for one, inner in value.items()}
            else:
                given[key] = value
        for path in given:
            if path not in self.options and path not in self.settings:
                word = f"--set {path}" if "." in path else f"--{path.replace('_', '-')}"
                raise self._unknown(word, where=f"{file}: ")
        return given

    def _unknown(self, word: str, *, where: str = "") -> UseError:
        """The error of a word that is neither an option nor a setting, with a probable guess."""
        spelled = {path: f"--set {path}=…" for path in self.settings}
        spelled |= {field: one.name for field, one in self.options.items()}
        spelled |= {name: f"--{name}" for name in ("json", "config", "help")}
        path = word.removeprefix("--set ").removeprefix("--").replace("-", "_")
        fields = (one for one in self.settings if one.endswith(f".{path}"))
        near = closest(path, spelled) if word.startswith("--") else None
        probable = (_OF_OTHER_TOOLS.get(path), path, *fields, near)
        guess = likely(next((spelled[one] for one in probable if one in spelled), None))
        message = f"{where}userdp {self.name} has no option {word}"
        return UseError(message, hint=f"{guess}see `userdp {self.name} --help`")


def command_of(tokens: Sequence[str]) -> str | None:
    """The command that a line begins with, if it is one."""
    line = " ".join(tokens[:2]) + " "
    return next((name for name in NAMES if line.startswith(f"{name} ")), None)


def sections_in(file: Path) -> dict[str, dict[str, Any]]:
    """The sections of a file of ``--config``, by command."""
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
    return sections


def first_lines() -> dict[str, str]:
    """The first line of each command's docstring, read from the source text."""
    files = (one for one in resources.files(commands).iterdir() if one.name.endswith(".py"))
    source = "".join(one.read_text(encoding="utf-8") for one in files)
    found = dict(re.findall(r'(?m)^def ([a-z]\w*)\((?:.|\n)*?:\n    """(.+)$', source))
    return {name: found[name.split()[-1]] for name in NAMES}


def list_of_commands() -> str:
    """What ``userdp --help`` prints."""
    parser, told = Parser(about=_ABOUT), first_lines()
    for heading, names in COMMANDS.items():
        group = parser.add_argument_group(heading)
        for one in names.split(", "):
            group.add_argument(one, help=told[one])
    return parser.help_with("COMMAND", epilog="Try: userdp demo --out demo")
