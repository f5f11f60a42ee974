"""The line of a command: its options, its help, and the arguments that it gives to a function.

Each command is a public function of `userdp`. Its signature says which options there are and which
values they take, the ``Args`` of its docstring what they mean. `argparse` reads the line and prints
the help. Only the command that is called is imported, so that no help waits for a library that is
slow to load; the list of all commands is a text, ``help.txt``.
"""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import userdp
from userdp.commands.arguments import Section
from userdp.core.annotations import Argument, arguments_of
from userdp.core.errors import UseError, likely

HELP = Path(__file__).with_name("help.txt").read_text(encoding="utf-8").strip()
"""What ``userdp --help`` prints."""
NAMES = tuple(re.findall(r"(?m)^  (\w+(?: \w+)?)  ", HELP))
"""All commands, as they are typed."""
_ALIASES = {"batch_size": "micro_batch", "lr": "learning_rate"}
"""As other tools call an option, and ours."""


class Parser(argparse.ArgumentParser):
    """`argparse`, whose mistakes are errors of ours."""

    def __init__(self, name: str = "", about: str = "") -> None:
        super().__init__(
            prog=f"userdp {name}".strip(),
            usage="%(prog)s [OPTIONS]",
            description="\n\n".join(textwrap.fill(one, 78) for one in about.split("\n\n")),
            formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=25),
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            add_help=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong with a line."""
        raise UseError(message.removeprefix("argument "), hint=f"see `{self.prog} --help`")


COMMON = Parser()
"""Options of every command, which may stand anywhere on the line."""
COMMON.add_argument("--config", action="append", default=[], type=Path)
COMMON.add_argument("--set", action="append", default=[])
for _flags in ("--help -h", "--json", "--settings", "--version"):
    COMMON.add_argument(*_flags.split(), action="store_true", default=False)


class Command(Parser):
    """A public function of `userdp`, as a line and a file give it its arguments.

    The annotation of its ``**keywords`` names dataclasses, whose fields are options, and a function
    that lists the sections of ``--set``. A command without such a function has a section for each
    argument that is a dataclass. The first argument of a command has no name on a line.

    Args:
        name: as it is typed, such as ``store stats``.
        settings: also take what ``--set section.field=value`` reaches, as ``--section.field``;
            these dataclasses may be slow to load.

    Attributes:
        function: that it calls.
        about: the paragraphs of its docstring before the arguments.
        example: a line to try.
        spelled: how each argument is typed, by its name in Python.
    """

    def __init__(self, name: str, *, settings: bool = False) -> None:
        self.name, self.function = name, getattr(userdp, name.split()[-1])
        self.about, _, behind = str(inspect.getdoc(self.function)).partition("\nExample::\n\n")
        self.example = behind.partition("\n")[0].strip()
        super().__init__(name, self.about)
        own = [*arguments_of(self.function)]
        listed = next((part for one in own for part in one.parts if inspect.isfunction(part)), None)
        whole = {one.name: Section(of=one.fields, whole=one.fields) for one in own if one.fields}
        more = f"All else: {self.prog} --settings lists it.\n\n"
        self.epilog = (more if (listed or whole) and not settings else "") + f"Try: {self.example}"
        reached = (listed() if listed else whole) if settings else {}
        self._sections = {"": Section(of=self.function), **reached}
        self.spelled, self._goes_to = dict[str, str](), dict[str, str]()
        self._known: dict[str, tuple[Argument, str]] = {}
        for place, section in self._sections.items():
            group = self.add_argument_group(place or "options")
            for one in arguments_of(section.of):
                if one.name not in section.without and (one.kind or one.choices):
                    self._take(group, one, place)

    def _take(self, group: Any, one: Argument, place: str) -> None:
        """Add an argument of Python to a group of the help, unless one of its name is known.

        Args:
            group: of the help.
            one: the argument.
            place: its section, if it is a setting.
        """
        name = f"{place}.{one.name}" if place else one.name
        if name in self.spelled:
            return
        first, option = one.by_place and not self.spelled, name if place else name.replace("_", "-")
        self.spelled[name] = name.upper() if first else f"--{option}"
        self._goes_to[name] = name if self._sections[place].whole else one.name
        self._known.setdefault(self._goes_to[name], (one, self.spelled[name]))
        shape: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
        if one.kind is not bool or place:
            kind = "TEXT" if one.kind in (None, str) else one.kind.__name__.upper()
            shape = {"action": "append", "metavar": name.upper() if first else kind}
            shape |= {"action": "extend", "nargs": "+"} if one.several else {}
        shape |= {"dest": self._goes_to[name], "help": one.meaning.replace("%", "%%")}
        group.add_argument(*([] if first else [f"--{option}"]), **shape).required = False

    def arguments(self, words: Sequence[str], files: Sequence[Path] = ()) -> dict[str, Any]:
        """What the words of a line, and the command's section of files, give to its function.

        Args:
            words: those behind the command; settings as ``--section.field=value``.
            files: of ``--config``, which add up. The line overrides them.

        Raises:
            UseError: something is misspelt, missing, given twice or of another kind.
        """
        given = defaultdict[str, list[Any]](list)
        for source, name, value in (one for file in files for one in values_in(file, self.name)):
            if name not in self.spelled:
                raise self._no_option(f"--{name.replace('_', '-')}", where=f"{source}: ")
            given[self._goes_to[name]] += value if isinstance(value, list) else [value]
        read, stray = self.parse_known_args(words)
        if stray:
            raise self._no_option(stray[0].partition("=")[0])
        given |= vars(read)
        absent = [known for name, known in self._known.items() if name not in given]
        if missing := [told for one, told in absent if one.needed and "." not in told]:
            self.error(f"{self.prog} needs {', '.join(missing)}")
        tables: dict[str, dict[str, Any]] = defaultdict(dict)
        for name, value in given.items():
            (place, _, field), (one, spelled) = name.rpartition("."), self._known[name]
            tables[place][field] = one.read(value, name=spelled)
        own = tables.pop("", {})
        return own | {one: self._sections[one].whole(**tables[one]) for one in tables}

    def _no_option(self, word: str, where: str = "") -> UseError:
        """The refusal of a word of a line, or of a key of a file, that is none of the options."""
        known = {one.rpartition(".")[2]: told for one, told in reversed(self.spelled.items())}
        known |= {one: f"--{one}" for one in ("config", "help", "json") if not where}
        others = {} if "." in word else _ALIASES
        known |= {other: known[own] for other, own in others.items() if own in known}
        field = word.removeprefix("--").replace("-", "_").rpartition(".")[2]
        kind = "option" if word.startswith("-") else "place for"
        hint = f"{likely(field, known) if kind == 'option' else ''}see `{self.prog} --help`"
        return UseError(f"{where}{self.prog} has no {kind} {word}", hint=hint)


def values_in(file: Path, command: str) -> Iterator[tuple[Path, str, Any]]:
    """What a file of ``--config`` says to a command: the file, an argument's name, a value."""
    hint = "it is a TOML file with a section for each command, as [train]"
    try:
        sections = tomllib.loads(file.expanduser().read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UseError(f"--config {file} cannot be read: {error}", hint=hint) from error
    if isinstance(sections.get("store"), dict):
        sections |= {f"store {one}": given for one, given in sections.pop("store").items()}
    for one in (one for one in sections if one not in NAMES or not isinstance(sections[one], dict)):
        known = {name: f"[{name.replace(' ', '.')}]" for name in NAMES}
        message = f"--config {file} has {one}, and no command has a section of that name"
        raise UseError(message, hint=likely(one, known) + hint)
    for key, value in sections.get(command, {}).items():
        for field, one in (value if isinstance(value, dict) else {"": value}).items():
            yield file, f"{key}.{field}".strip(".").replace("-", "_"), one


def command_of(words: Sequence[str]) -> str:
    """The command that a line begins with; `UseError` where it is none."""
    name = " ".join(words[: 2 if words[0] == "store" else 1])
    if name in NAMES:
        return name
    known = {one.split()[-1]: f"`userdp {one}`" for one in NAMES}
    hint = f"{likely(name.rpartition(' ')[2], known)}see `userdp --help`"
    raise UseError(f"there is no command {name!r}", hint=hint)
