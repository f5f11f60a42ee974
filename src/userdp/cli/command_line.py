"""The line of a command: its options, its help, and the arguments that it gives to a function.

Each command is a public function of `userdp`. Its signature says which options there are and which
values they take, the ``Args`` of its docstring what they mean. `argparse` reads the line and prints
the help. Only the command that is called is imported, so that no help waits for a library that is
slow to load; the list of all commands is a text, ``help.txt``. What a file of ``--config`` says is
read as words of a line, which the real line overrides.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from datetime import date
from enum import EnumType
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

import userdp
from userdp.commands.arguments import Section
from userdp.core.codec import decode
from userdp.core.errors import UseError, closest, likely

HELP = Path(__file__).with_name("help.txt").read_text(encoding="utf-8").strip()
"""What ``userdp --help`` prints."""
NAMES = tuple(re.findall(r"(?m)^  (\w+(?: \w+)?)  ", HELP))
"""All commands, as they are typed."""
_KINDS: dict[Any, tuple[str, str]] = {
    Path: ("PATH", "a path"),
    int: ("INT", "a whole number"),
    float: ("FLOAT", "a number"),
    date: ("DATE", "a day, as 2026-01-31"),
    bool: ("BOOL", "true or false"),
    str: ("TEXT", "text"),
}
"""The types of values in the help and in errors; the first that an argument may have counts."""
_OF_OTHER_TOOLS = {"batch_size": "micro_batch", "lr": "learning_rate"}


class Once(argparse.Action):
    """Takes the value of an argument that may be given once, or those of one that has several."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        """Keep what was read."""
        before = getattr(namespace, self.dest, ())
        if self.nargs is None and before != ():
            parser.error(f"{option} is given twice, and one is wanted")
        setattr(namespace, self.dest, values if self.nargs is None else (*before, *values))


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
        """Raise what is wrong with a line; what stands below its first line is a guess."""
        what, _, guess = message.removeprefix("argument ").partition("\n")
        hint = f"{guess}see `{self.prog} --help`"
        raise UseError(what.replace(": must be", " must be"), hint=hint)


COMMON = Parser()
"""Options of every command, which may stand anywhere on the line."""
COMMON.add_argument("--config", type=Path, default=None)
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
        self.spelled, self._needed = dict[str, str](), list[str]()
        own = inspect.signature(self.function, eval_str=True).parameters.values()
        named = [part for one in own for part in get_args(one.annotation)]
        listed: Any = next(filter(inspect.isfunction, named), None)
        kinds = {one.name: _dataclass_of(one.annotation) for one in own}
        whole = {name: Section(of=kind, whole=kind) for name, kind in kinds.items() if kind}
        more = f"All else: {self.prog} --settings lists it.\n\n"
        self.epilog = (more if (listed or whole) and not settings else "") + f"Try: {self.example}"
        self._sections: dict[str, Any] = {} if not settings else listed() if listed else whole
        for place, section in {"": Section(of=self.function), **self._sections}.items():
            group = self.add_argument_group(place or "options")
            for one, words in _described(section.of):
                if one.name not in section.without:
                    self._take(group, one, words, place)

    def _take(self, group: Any, one: inspect.Parameter, words: str, place: str) -> None:
        """Add an argument of Python, if words can give it, to a group of the help.

        Args:
            group: of the help.
            one: the argument.
            words: its meaning.
            place: its section, if it is a setting.
        """
        parts = _parts(one.annotation)
        kind = next((kind for kind in _KINDS if kind in parts), None)
        choices = [part for part in parts if isinstance(part, str)]
        if (kind is None and not choices) or (one.name in self.spelled and not place):
            return
        metavar, wanted = _KINDS.get(kind, ("TEXT", f"one of {', '.join(choices)}"))
        spelled = f"--{place}.{one.name}" if place else f"--{one.name.replace('_', '-')}"
        if one.kind is one.POSITIONAL_OR_KEYWORD and not self.spelled:
            spelled = metavar = one.name.upper()
        self.spelled.setdefault(one.name, spelled)
        words = words.rstrip(".") + (f": {', '.join(choices)}" if choices else "")
        if one.default is one.empty and not place:
            self._needed.append(one.name)
            words += " [needed]"
        elif isinstance(one.default, str | int | float) and kind is not bool:
            words += f" [default: {one.default}]"
        words = words.replace("%", "%%")
        if kind is bool and not place:  # shown is the flag that changes something
            for flag, on in ((f"--no-{spelled[2:]}", False), (spelled, True)):
                told = argparse.SUPPRESS if on is one.default else words
                group.add_argument(flag, dest=one.name, action="store_const", const=on, help=told)
            return
        group.add_argument(
            *([spelled] if spelled.startswith("-") else []),
            dest=f"{place}.{one.name}" if place and self._sections[place].whole else one.name,
            action=Once,
            type=partial(_value, kind, choices, wanted),
            nargs="+" if Sequence in parts or tuple in parts else None,
            metavar=metavar,
            help=words,
        ).required = False  # a file may give it

    def arguments(self, words: Sequence[str], file: Path | None = None) -> dict[str, Any]:
        """What the words of a line, and the command's section of a file, give to its function.

        Args:
            words: those behind the command; settings as ``--section.field=value``.
            file: of ``--config``. The line overrides it.

        Raises:
            UseError: something is misspelt, missing, given twice or of another kind.
        """
        section = {} if file is None else sections_in(file).get(self.name, {})
        in_file = [word for key, value in section.items() for word in self._words(key, value)]
        given = self._read(in_file, where=f"{file}: ") | self._read(words)
        if missing := [self.spelled[one] for one in self._needed if one not in given]:
            self.error(f"{self.prog} needs {', '.join(missing)}")
        tables: dict[str, dict[str, Any]] = defaultdict(dict)
        for path in [one for one in given if "." in one]:
            place, field = path.split(".")
            tables[place][field] = given.pop(path)
        return given | {place: self._sections[place].whole(**tables[place]) for place in tables}

    def _words(self, key: str, value: Any) -> list[str]:
        """A key of a file and its value as words of a line."""
        if isinstance(value, dict):
            return [word for one in value for word in self._words(f"{key}.{one}", value[one])]
        name = f"--{key if '.' in key else key.replace('_', '-')}"
        if isinstance(value, bool) and "." not in key:
            return [name if value else f"--no-{name[2:]}"]
        several = value if isinstance(value, list) else [value]
        texts = [json.dumps(one) if isinstance(one, bool) else str(one) for one in several]
        by_place = self.spelled.get(key) == key.upper()
        return texts if by_place else [f"{name}={text}" for text in texts]

    def _read(self, words: Sequence[str], *, where: str = "") -> dict[str, Any]:
        """What words give, by the names of arguments, or ``section.name`` of a part of one."""
        read, stray = self.parse_known_args(words)
        for word in (one.partition("=")[0] for one in stray):
            known = self.spelled | {one: f"--{one}" for one in ("config", "help", "json")}
            known |= {other: known[own] for other, own in _OF_OTHER_TOOLS.items() if own in known}
            field = word.removeprefix("--").replace("-", "_").rpartition(".")[2]
            hint = f"{_guess(field, known)}see `{self.prog} --help`"
            raise UseError(f"{where}{self.prog} has no option {word}", hint=hint)
        return vars(read)


def sections_in(file: Path) -> dict[str, dict[str, Any]]:
    """The sections of a file of ``--config``, by command."""
    hint = "it is a TOML file with a section for each command, as [train]"
    try:
        sections = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UseError(f"--config {file} cannot be read as TOML: {error}", hint=hint) from error
    if isinstance(sections.get("store"), dict):
        sections |= {f"store {one}": given for one, given in sections.pop("store").items()}
    for one in (one for one in sections if one not in NAMES or not isinstance(sections[one], dict)):
        message = f"--config {file} has {one}, which is no section of a command that could read it"
        raise UseError(message, hint=_guess(one, {name: f"[{name}]" for name in NAMES}) + hint)
    return sections


def command_of(words: Sequence[str]) -> str:
    """The command that a line begins with; `UseError` where it is none."""
    name = " ".join(words[: 2 if words[0] == "store" else 1])
    if name in NAMES:
        return name
    known = {one.split()[-1]: f"`userdp {one}`" for one in NAMES}
    hint = f"{_guess(name.split()[-1], known)}see `userdp --help`"
    raise UseError(f"there is no command {name!r}", hint=hint)


def _guess(word: str, known: Mapping[str, str]) -> str:
    """The beginning of a hint: what was probably meant, if one of the known words is like it."""
    return likely(known.get(closest(word, known) or ""))


def _described(thing: Any) -> Iterator[tuple[inspect.Parameter, str]]:
    """Each argument of a function, or field of a dataclass, with its meaning; and, behind the
    keywords of a function, the fields of the dataclasses that these name.
    """
    meanings = dict(re.findall(r"(?m)^ {4}(\w+): (.*(?:\n {5,}.*)*)", inspect.getdoc(thing) or ""))
    for one in inspect.signature(thing, eval_str=True).parameters.values():
        yield one, meanings.get(one.name, "")
        if one.kind is one.VAR_KEYWORD:
            for group in filter(inspect.isclass, get_args(one.annotation)[1:]):
                yield from _described(group)


def _dataclass_of(hint: Any) -> Any:
    """The dataclass that a type is, if no word stands for one: it is given field by field."""
    parts = _parts(hint)
    return None if str in parts else next(filter(is_dataclass, parts), None)


def _parts(hint: Any) -> list[Any]:
    """All that a type is made of: what it is, and the members of unions and enumerations."""
    own = get_origin(hint) or hint
    inside = hint if isinstance(hint, EnumType) else get_args(hint)
    return [Path if own is os.PathLike else own, *(part for one in inside for part in _parts(one))]


def _value(kind: Any, choices: list[str], wanted: str, word: str) -> Any:
    """What a word means where values are of a kind, or are one of some choices."""
    if word in choices:
        return choices[choices.index(word)]  # of an enumeration its member
    if kind is Path:  # no shell expands ~ in a file, nor in --out=~/store
        return Path(os.path.expanduser(word))  # noqa: PTH111 (an unknown ~name stays)
    with suppress(ValueError):
        meant = float(word) if kind is float else json.loads(word) if kind in (int, bool) else word
        whole = isinstance(meant, float) and meant.is_integer()  # 1e3
        return decode(kind, int(meant) if whole else meant, what=word)
    guess = likely(closest(word, choices))
    raise argparse.ArgumentTypeError(f"must be {wanted}, got {word!r}\n{guess}")
