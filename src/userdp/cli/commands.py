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
import re
import textwrap
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module, resources
from json import dumps
from pathlib import Path
from shutil import get_terminal_size
from types import ModuleType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from userdp import commands
from userdp.commands.setting import Section, Setting, documented
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
_SEQUENCES = (Sequence, tuple)


@dataclass(frozen=True, kw_only=True, slots=True)
class Option(Setting):
    """An argument of a command, as a line gives it.

    Args:
        field: its name in Python.
        several: whether it may have more than one value, each of which is of the kind.
        place: whether it is known by its place on the line, and has no name there.
    """

    field: str
    several: bool = False
    place: bool = False

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

    def value(self, words: Sequence[str], *, listed: str) -> Any:
        """What its argument becomes; a flag has no words."""
        values = tuple(self.read(one, place=self.name, listed=listed) for one in words)
        return values if self.several else values[0] if values else not self.default


_CONFIG = Option(field="config", kind=Path, words="a TOML file with a section for each command")


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

    The first argument of the function has no name on a line. The dataclasses that annotate
    ``**keywords`` give their fields. Only a program has a whole dataclass to give, or somebody to
    tell of progress.
    """
    function = function_of(name)
    known = _Known(function.__globals__)
    hints = get_type_hints(function, localns=known, include_extras=True)
    words, found = documented(function), list[Option]()
    for one in inspect.signature(function).parameters.values():
        if one.kind is one.VAR_KEYWORD:
            for group in get_args(hints[one.name])[1:]:
                told, of = documented(group), get_type_hints(group)
                for field in dataclasses.fields(group):
                    if field.name not in words:
                        found += _option(field, of[field.name], told[field.name])
        elif one.name != "progress":
            place = not found and one.kind is not one.KEYWORD_ONLY
            found += _option(one, hints[one.name], words[one.name], place=place)
    return tuple(found)


def _option(of: Any, hint: Any, words: str, *, place: bool = False) -> Iterator[Option]:
    """The option of an argument or a field, unless a line cannot give its value."""
    kinds = [*_members(hint)]
    if str in kinds or not any(map(dataclasses.is_dataclass, kinds)):
        is_path = any(kind is Path or get_origin(kind) is os.PathLike for kind in kinds)
        yield Option(
            field=of.name,
            kind=Path if is_path else str if str in kinds else kinds[0],
            several=any(get_origin(one) in _SEQUENCES for one in (hint, *get_args(hint))),
            default=of.default,
            words=words,
            place=place,
        )


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


Given: TypeAlias = Iterable[tuple[str, list[str]]]
"""What is given to a command: names of options, each with the words of its values."""


def arguments_of(
    command: str, tokens: Sequence[str], section: Callable[[Path], Mapping[str, Any]]
) -> dict[str, Any]:
    """What a line gives to the function of a command, by the names of its arguments.

    Args:
        command: its name.
        tokens: the line behind the name.
        section: reads what the file of ``--config`` says where the line is silent; settings of
            both count.

    Raises:
        UseError: something is misspelt, missing, given twice or of another kind.
    """
    options = {one.name: one for one in (*options_of(command), _CONFIG)}
    found = _values(command, _of_line(tokens, options), options)
    if file := found.pop(_CONFIG.field, None):
        told = section(file)
        try:
            given = _values(command, _of_file(told, options), options)
        except UseError as error:
            raise UseError(f"{file}: {error.message}", hint=error.hint) from error
        if "settings" in given:
            found["settings"] = (*given["settings"], *found.get("settings", ()))
        found = given | found
    for option in options.values():
        if option.needed and option.field not in found:
            raise UseError(
                f"userdp {command} needs {option.name}", hint=f"see `userdp {command} --help`"
            )
    return found


def _of_line(tokens: Sequence[str], options: Mapping[str, Option]) -> Given:
    """What the words of a line give; a word that names no option belongs to the place."""
    place = next((name for name, one in options.items() if one.place), None)
    words = deque(tokens)
    while words:
        word = words.popleft()
        name, equals, text = word.partition("=")
        if not name.startswith("--"):
            yield place or word, [word]
            continue
        option, values = options.get(name), [text] if equals else []
        takes = option is not None and option.kind is not bool and not equals
        most = len(words) if option and option.field in _TRIED else 1
        while takes and len(values) < most and words and not words[0].startswith("--"):
            values.append(words.popleft())
        yield name, values


def _of_file(section: Mapping[str, Any], options: Mapping[str, Option]) -> Given:
    """What a command's section of a file gives, as if it stood on a line."""
    names = {one.field: name for name, one in options.items()}
    for key, value in section.items():
        name = names.get(key.replace("-", "_"), key)
        if isinstance(value, dict):
            yield "--set", [f"{key}.{field}={_in_words(one)}" for field, one in value.items()]
        elif name not in options or not isinstance(value, bool):
            yield name, [*map(_in_words, value if isinstance(value, list) else [value])]
        elif value is not options[name].default:
            yield name, []


def _in_words(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value, default=str)


def _values(command: str, given: Given, options: Mapping[str, Option]) -> dict[str, Any]:
    """The values of what is given, by the names of arguments."""
    listed, found = f"see `userdp {command} --help`", dict[str, list[str]]()
    for name, words in given:
        if name not in options:
            guess = likely(_meant(command, name))
            raise UseError(f"userdp {command} has no option {name}", hint=f"{guess}{listed}")
        option, all_words = options[name], found.setdefault(name, [])
        if bool(words) is (option.kind is bool):
            needs = "a file" if option is _CONFIG else "a value"
            told = "takes no value" if words else f"needs {needs}"
            raise UseError(f"{name} {told}", hint=listed)
        all_words += words
        if len(all_words) > 1 and not option.several:
            both = " and ".join(all_words)
            raise UseError(f"{name} is given twice ({both}), and one is wanted", hint=listed)
    return {
        options[name].field: options[name].value(words, listed=listed)
        for name, words in found.items()
    }


def _meant(command: str, word: str) -> str | None:
    """The option that was probably meant."""
    options = options_of(command)
    known = [*(one.name for one in options), *(repr(one.field) for one in options), *_EVERYWHERE]
    if _ELSEWHERE.get(word) in known:
        return _ELSEWHERE[word]
    field = word.removeprefix("--").replace("-", "_")
    at = next((at for at, fields in sections_of(command).items() if field in fields), None)
    return closest(word, known) if at is None else f"--set {at}.{field}=…"


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
        known = last.choices if last and last.choices else [*options, *_EVERYWHERE]
    return sorted({one for one in known if one.startswith(word)})


def first_line(name: str) -> str:
    """The first line of the docstring of a command.

    It is read from the text, so that a list of commands imports none of them.
    """
    name = name.split()[-1]
    text = (resources.files(commands) / f"{name}.py").read_text(encoding="utf-8")
    found = re.search(rf'(?m)^def {name}\((?:.|\n)*?:\n    """(.+)$', text)
    return found[1] if found else ""


def told_of(name: str) -> tuple[list[str], str]:
    """The paragraphs of a command's docstring before its arguments, and its example."""
    text = inspect.getdoc(function_of(name)) or ""
    told, _, behind = text.partition("\nExample::\n")
    return [" ".join(part.split()) for part in told.split("\n\n")], behind.split("\n")[1].strip()


def help_of(name: str = "") -> str:
    """The help of a command, or of all that begin with a word, under their headings."""
    width = min(100, get_terminal_size().columns) - 1

    def listed(rows: Sequence[tuple[str, str]]) -> str:
        left = max(len(first) for first, _ in rows) + 4
        wrap = textwrap.TextWrapper(width, subsequent_indent=" " * left, break_on_hyphens=False)
        return "\n".join(wrap.fill(f"  {first}".ljust(left) + words) for first, words in rows)

    lists: list[str] = []
    if name in NAMES:
        options, (told, example) = options_of(name), told_of(name)
        usage = " ".join([name, *(one.shown for one in options if one.needed), "[OPTIONS]"])
        lists.append(listed([(one.shown, one.told) for one in options]))
        if any(one.name == "--set" for one in options):
            lists.append(f"All else: userdp {name} --settings lists it.")
    else:
        usage, told, example = f"{name} COMMAND".strip(), [*_HELP], "userdp demo --out demo"
        for heading, of in COMMANDS.items():
            rows = [(one, first_line(one)) for one in of.split(", ") if one.startswith(name)]
            if not name and heading == _STORE:
                rows = [("store", of.replace("store ", ""))]
            if rows:
                lists.append(f"{heading}:\n{listed(rows)}")
    wrapped = [textwrap.fill(one, width) for one in told]
    return "\n\n".join([f"Usage: userdp {usage}", *wrapped, *lists, f"Try: {example}"])
