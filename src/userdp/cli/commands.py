"""The commands of ``userdp``: each is one function of `userdp.commands`, read as it is.

Its first line, its paragraphs, its ``Args`` and its ``Example`` are the help. A command is imported
when it is called; of all others one line is read, from their text. Neither help nor a line of
arguments needs a library, so that both are there at once.
"""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import os
import textwrap
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from json import dumps
from pathlib import Path
from shutil import get_terminal_size
from types import ModuleType
from typing import Any, Union, get_args, get_origin, get_type_hints

from userdp import commands
from userdp.commands.documented import documented, example_of, first_line, paragraphs
from userdp.commands.setting import Section, Setting
from userdp.core.errors import UseError
from userdp.core.hints import closest, likely

_STORE = "A store's life"
COMMANDS = {
    "The main way": "prepare, plan, train, evaluate, generate, report, export, verify, account",
    _STORE: "store stats, store budget, store settle, store members, store forget, store score, "
    "store dedup",
    "Beside it": "demo, tune, federate, audit, selftest",
}
"""By heading, in the order in which ``userdp --help`` shows them."""
NAMES = tuple(", ".join(COMMANDS.values()).split(", "))
_HELP = (
    "Fine-tune language models with user-level differential privacy.",
    "Every command takes --json (one JSON object on stdout, errors too) and --config FILE (TOML, "
    "a section for each command, which options override). Exit status: 0 done, 1 failed, 2 bad "
    "use, 130 interrupted: what was paid for is finished first, and the last line says how to go "
    "on.",
)
_TRIED = ("plan", "learning_rate", "l2_clip_norm", "optimizer")
"""Of `tune`: values stand behind one another."""
_EVERYWHERE = ("--json", "--config", "--help")
_ELSEWHERE = {
    "--batch-size": "--micro-batch",
    "--eps": "--epsilon",
    "--lr": "--learning-rate",
    "--noise": "--noise-multiplier",
}
"""Words of other tools, which are no misspelling of ours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Option(Setting):
    """An argument of a command, as a line gives it.

    Args:
        field: its name in Python.
        several: whether it may have more than one value, each of which is of the kind.
        place: whether it is known by its place on the line, and has no name there.
    """

    field: str
    several: bool
    place: bool

    @property
    def name(self) -> str:
        """What is typed, or stands for it: ``--micro-batch``, ``--no-base``, ``STORE``."""
        if self.place:
            return self.field.upper()
        if self.field == "settings":
            return "--set"
        return f"--{'no-' if self.default is True else ''}{self.field.replace('_', '-')}"

    @property
    def needed(self) -> bool:
        """Whether a line must give it."""
        return self.default in (inspect.Parameter.empty, dataclasses.MISSING)

    @property
    def shown(self) -> str:
        """Its name and the kind of its value, for the help."""
        kinds = {int: " INT", float: " FLOAT", Path: " PATH", bool: ""}
        return self.name if self.place else self.name + kinds.get(self.kind, " TEXT")

    @property
    def told(self) -> str:
        """What it is, and what it is by default, for the help."""
        fixed = isinstance(self.default, str | int | float) and not isinstance(self.default, bool)
        return self.words.rstrip(".") + (f" [default: {self.default}]" if fixed else "")

    def value(self, given: Sequence[Any], *, listed: str) -> Any:
        """What its argument becomes: words of a line, or values of a file; a flag has none."""
        if not given:
            return not self.default
        words = [one if isinstance(one, str) else dumps(one) for one in given]
        values = [self.read(one, place=self.name, listed=listed) for one in words]
        return tuple(values) if self.several else values[-1]


def command_of(tokens: Sequence[str]) -> str | None:
    """The command that a line begins with, if it is one."""
    line = " ".join(tokens[:2]) + " "
    return next((name for name in NAMES if line.startswith(f"{name} ")), None)


def module_of(name: str) -> ModuleType:
    """Where a command is: its function, and what ``--set`` reaches."""
    return import_module(f"{commands.__name__}.{name.split()[-1]}")


def function_of(name: str) -> Callable[..., Any]:
    """The function itself, as Python calls it."""
    function: Callable[..., Any] = getattr(module_of(name), name.split()[-1])
    return function


def sections_of(name: str) -> Mapping[str, Section]:
    """What ``--set`` reaches of a command."""
    found: Mapping[str, Section] = getattr(module_of(name), "sections", dict)()
    return found


@cache
def options_of(name: str) -> tuple[Option, ...]:
    """All that a line may give to a command.

    The first argument of the function has no name on a line. The dataclass that annotates
    ``**keywords`` gives its fields, of which those that hold other objects are no options. Only a
    program has a whole dataclass to give, or somebody to tell of progress.
    """
    function = function_of(name)
    known = _Known(function.__globals__)
    hints = get_type_hints(function, localns=known, include_extras=True)
    words, found = documented(function), list[Option]()
    for one in inspect.signature(function).parameters.values():
        if one.kind is one.VAR_KEYWORD:
            for group in get_args(hints[one.name])[1:]:
                told, of = documented(group), get_type_hints(group)
                fields = [field for field in dataclasses.fields(group) if field.name not in words]
                for field in fields:
                    found += _option(field.name, of[field.name], field.default, told[field.name])
        elif one.name != "progress":
            place = not found and one.kind is not one.KEYWORD_ONLY
            found += _option(one.name, hints[one.name], one.default, words[one.name], place=place)
    return tuple(found)


def _option(
    field: str, hint: Any, default: Any, words: str, *, place: bool = False
) -> Iterator[Option]:
    """The option of an argument, unless a line cannot give its value."""
    kinds = [*_members(hint)]
    if str in kinds or not any(map(dataclasses.is_dataclass, kinds)):
        is_path = any(kind is Path or get_origin(kind) is os.PathLike for kind in kinds)
        yield Option(
            field=field,
            kind=Path if is_path else str if str in kinds else kinds[0],
            several=any(get_origin(one) in _SEQUENCES for one in (hint, *get_args(hint))),
            default=default,
            words=words,
            place=place,
        )


_SEQUENCES = (Sequence, tuple)


def _members(hint: Any) -> Iterator[Any]:
    """The types that a hint stands for: of a union and of a sequence its members'."""
    if get_origin(hint) in (Union, types.UnionType, *_SEQUENCES):
        for one in get_args(hint):
            yield from _members(one)
    else:
        yield hint


class _Known(dict[str, Any]):
    """A module's names; one that it knows for type checkers alone is anything."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


def arguments_of(command: str, tokens: Sequence[str], file: Mapping[str, Any]) -> dict[str, Any]:
    """What a line gives to the function of a command, by the names of its arguments.

    Args:
        command: its name.
        tokens: the line behind the name.
        file: what a file gives where the line is silent; settings of both count.

    Raises:
        UseError: something is misspelt, missing, given twice or of another kind.
    """
    listed = f"see `userdp {command} --help`"
    options = {one.name: one for one in options_of(command)}
    place = next((name for name, one in options.items() if one.place), None)
    given, words = dict[str, list[str]](), deque(tokens)
    while words:
        name, equals, text = words[0].partition("=")
        if not name.startswith("--"):
            if place is None or (place in given and not options[place].several):
                told = f"userdp {command} takes nothing more, and got {words[0]!r}"
                raise UseError(told, hint=listed)
            given.setdefault(place, []).append(words.popleft())
            continue
        words.popleft()
        if name not in options:
            guess = likely(_meant(command, name))
            raise UseError(f"userdp {command} has no option {name}", hint=f"{guess}{listed}")
        option, values = options[name], [text] if equals else []
        while option.kind is not bool and not equals and words and not words[0].startswith("--"):
            values.append(words.popleft())
            if option.field not in _TRIED:
                break
        if bool(values) is (option.kind is bool):
            told = "takes no value" if values else "needs a value"
            raise UseError(f"{name} {told}", hint=listed)
        if name in given and not option.several:
            raise UseError(f"{name} is given twice, and one value is wanted", hint=listed)
        given.setdefault(name, []).extend(values)
    of_line = {
        options[name].field: options[name].value(given[name], listed=listed) for name in given
    }
    if "settings" in of_line:
        of_line["settings"] = (*file.get("settings", ()), *of_line["settings"])
    found = {**file, **of_line}
    for option in options.values():
        if option.needed and option.field not in found:
            raise UseError(f"userdp {command} needs {option.name}", hint=listed)
    return found


def _meant(command: str, word: str) -> str | None:
    """The option that was probably meant."""
    known = [*(one.name for one in options_of(command)), *_EVERYWHERE]
    if _ELSEWHERE.get(word) in known:
        return _ELSEWHERE[word]
    field = word.removeprefix("--").replace("-", "_")
    places = [at for at, fields in sections_of(command).items() if field in fields]
    return f"--set {places[0]}.{field}=…" if places else closest(word, known)


def completions(line: str) -> list[str]:
    """The words that may stand at the end of an unfinished line: commands, options, values."""
    *before, word = line.split(" ")[1:] or [""]
    command = command_of(before)
    if command is None:
        begun = " ".join([*before, word])
        known = [name.split()[len(before)] for name in NAMES if name.startswith(begun)]
    else:
        options = {one.name: one for one in options_of(command) if not one.place}
        last = options.get(before[-1])
        known = [*(last.choices if last and last.choices else [*options, *_EVERYWHERE])]
    return sorted({one for one in known if one.startswith(word)})


def help_of(name: str = "") -> str:
    """The help of a command, or of all that begin with a word, under their headings."""
    width = min(100, get_terminal_size().columns) - 1

    def listed(rows: Sequence[tuple[str, str]]) -> str:
        left = max(len(first) for first, _ in rows) + 4
        wrap = textwrap.TextWrapper(width, subsequent_indent=" " * left, break_on_hyphens=False)
        return "\n".join(wrap.fill(f"  {first}".ljust(left) + words) for first, words in rows)

    lists: list[str] = []
    if name in NAMES:
        options, function = options_of(name), function_of(name)
        usage = " ".join([name, *(one.shown for one in options if one.needed), "[OPTIONS]"])
        told = (first_line(commands, name), *paragraphs(function))
        lists.append(listed([(one.shown, one.told) for one in options]))
        example = example_of(function)
        if any(one.name == "--set" for one in options):
            lists.append(f"All else: userdp {name} --settings lists it.")
    else:
        usage, told, example = f"{name} COMMAND".strip(), _HELP, "userdp demo --out demo"
        for heading, of in COMMANDS.items():
            listing = [one for one in of.split(", ") if one.startswith(name)]
            rows = [(one, first_line(commands, one)) for one in listing]
            if not name and heading == _STORE:
                rows = [("store", of.replace("store ", ""))]
            if rows:
                lists.append(f"{heading}:\n{listed(rows)}")
    wrapped = [textwrap.fill(one, width) for one in told]
    return "\n\n".join([f"Usage: userdp {usage}", *wrapped, *lists, f"Try: {example}"])
