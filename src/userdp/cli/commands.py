"""The commands of ``userdp``: each is one function of `userdp.commands`, read as it is.

Its first line, its paragraphs and its ``Args`` are the help. A command is imported when it is
called; of all others one line is read, from their text. The help needs no library, so that it is
there at once.
"""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import os
import re
import textwrap
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from types import ModuleType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from userdp import commands
from userdp.commands.documented import documented, first_line, paragraphs
from userdp.version import __version__

if TYPE_CHECKING:  # the help does without it
    from cyclopts import App

_MECHANISM = "--sampling-probability 0.01 --steps 1000 --delta 1e-6 --noise-multiplier 1"
_STORE = "A store's life"
COMMANDS: dict[str, dict[str, str]] = {
    "The main way": {
        "prepare": "mail.jsonl.gz --out store",
        "plan": "store --budget 64 --steps 50 --epsilon 4 --model bundled --population 1000",
        "train": "store --out run --epsilon 4 --population 20000",
        "evaluate": "run --store store",
        "generate": "run --records 1000 --out synthetic.jsonl",
        "report": "run --out report.html",
        "export": "run --out shared",
        "verify": "run",
        "account": _MECHANISM,
    },
    _STORE: {
        "store stats": "store",
        "store budget": "store --epsilon 8 --delta 1e-6",
        "store settle": "run",
        "store members": "store",
        "store forget": "store --user ann@example.org",
        "store score": "store --out scores.arrow",
        "store dedup": "public.jsonl.gz --private mail.jsonl.gz --out clean.jsonl.gz",
    },
    "Beside it": {
        "demo": "--out demo",
        "tune": "store --out tuned --plan plan.json --tuning composition --l2-clip-norm 0.1 0.3",
        "federate": "chat.jsonl --out silos --items-per-silo 500 --subjects-per-silo 100",
        "audit": "run --store store",
        "selftest": "--model bundled",
    },
}
"""By heading, in the order in which ``userdp --help`` shows them: arguments that one can run."""
_HELP = (
    "Fine-tune language models with user-level differential privacy.",
    "Every command takes --json (one JSON object on stdout, errors too) and --config FILE (TOML, "
    "a section for each command, which options override). Exit status: 0 done, 1 failed, 2 bad "
    "use, 130 interrupted: what was paid for is finished first, and the last line says how to go "
    "on.",
)
_TRIED = ("plan", "learning_rate", "l2_clip_norm", "optimizer")
"""Of `tune`: values stand behind one another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """An argument of a command, as a line gives it.

    Args:
        field: its name in Python.
        kind: the type of one value.
        several: whether it may have more than one.
        default: `inspect.Parameter.empty` where one must be given.
        words: what it is.
        place: whether it is known by its place on the line, and has no name there.
    """

    field: str
    kind: Any
    several: bool
    default: Any
    words: str
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
    def shown(self) -> str:
        """Its name and the kind of its value, for the help."""
        kinds = {int: " INT", float: " FLOAT", Path: " PATH", bool: ""}
        return self.name if self.place else self.name + kinds.get(self.kind, " TEXT")

    @property
    def told(self) -> str:
        """What it is, and what it is by default, for the help."""
        fixed = isinstance(self.default, str | int | float) and not isinstance(self.default, bool)
        return self.words.rstrip(".") + (f" [default: {self.default}]" if fixed else "")

    def typed(self, value: Any) -> list[str]:
        """A value of a configuration file as words of a line."""
        if self.kind is bool:
            return [] if value is self.default else [self.name]
        values = value if isinstance(value, list) else [value]
        return [word for one in values for word in (self.name, str(one))]


def names() -> tuple[str, ...]:
    """All commands."""
    return tuple(name for examples in COMMANDS.values() for name in examples)


def command_of(tokens: Sequence[str]) -> str | None:
    """The command that a line begins with, if it is one."""
    line = " ".join(tokens[:2]) + " "
    return next((name for name in names() if line.startswith(f"{name} ")), None)


def module_of(name: str) -> ModuleType:
    """Where a command is: its function, and perhaps ``in_words`` of what that answers."""
    return import_module(f"{commands.__name__}.{name.split()[-1]}")


def function_of(name: str) -> Callable[..., Any]:
    """The function itself, as Python calls it."""
    function: Callable[..., Any] = getattr(module_of(name), name.split()[-1])
    return function


@cache
def options_of(name: str) -> tuple[Option, ...]:
    """All that a line may give to a command.

    The first argument of the function has no name on a line. The fields of a dataclass are options,
    or settings where the command has such; and only a program says whom to tell of progress.
    """
    function = function_of(name)
    hints = get_type_hints(function, localns=_Known(function.__globals__))
    words, found = documented(function), list[Option]()
    for one in inspect.signature(function).parameters.values():
        kinds = _kinds(hints[one.name])
        group = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        if one.name == "progress" or one.kind is one.VAR_KEYWORD:
            continue
        if group is None or str in kinds:
            place = not found and one.kind is not one.KEYWORD_ONLY
            found.append(_option(one.name, kinds, one.default, words[one.name], place=place))
        elif "settings" not in hints:
            told, of = documented(group), get_type_hints(group)
            found += [
                _option(field.name, _kinds(of[field.name]), field.default, told[field.name])
                for field in dataclasses.fields(group)
            ]
    return tuple(found)


def _option(
    field: str, kinds: tuple[Any, ...], default: Any, words: str, *, place: bool = False
) -> Option:
    sequence = next((kind for kind in kinds if get_origin(kind) in (Sequence, tuple)), None)
    inner = _kinds(get_args(sequence)[0]) if sequence else kinds
    paths = [kind for kind in inner if kind is Path or get_origin(kind) is os.PathLike]
    return Option(
        field=field,
        kind=Path if paths else str if str in inner else inner[0],
        several=sequence is not None,
        default=default,
        words=words,
        place=place,
    )


class _Known(dict[str, Any]):
    """A module's names; one that it knows for type checkers alone is anything."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def choices(kind: Any) -> list[str]:
    """The values of a type, where they are few."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(one.value) for one in kind]
    return [str(one) for one in get_args(kind)] if get_origin(kind) is Literal else []


def build_app(wanted: Iterable[str]) -> App:
    """The program with the ``wanted`` commands only, since their code is loaded."""
    from cyclopts import App

    options: Any = {
        "print_error": False,
        "exit_on_error": False,
        "result_action": "return_value",
        "suppress_keyboard_interrupt": False,  # by default it exits without a word
    }
    app, store = App(name="userdp", version=__version__, **options), App(name="store", **options)
    app.register_install_completion_command()
    app.command(store)
    for name in wanted:
        place = store if name.startswith("store ") else app
        place.command(_for_a_line(name), name=name.split()[-1])
    return app


def _for_a_line(name: str) -> Callable[..., Any]:
    """A function of `userdp.commands` that takes what a line may give."""

    def command(*arguments: Any, **options: Any) -> Any:
        return function_of(name)(*arguments, **options)

    parameters = [_as_read(one) for one in options_of(name)]
    # What `inspect.signature` reads first; typeshed lists it for no function.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _as_read(option: Option) -> inspect.Parameter:
    """An option as the command-line library reads it."""
    from cyclopts import Parameter

    told: dict[str, Any] = {"name": option.name, "negative": ()}
    if option.default is True:  # only leaving out is an option
        told = {"negative": option.name}
    if option.kind is int:
        told["converter"] = _whole
    told["consume_multiple"] = option.several and option.field in _TRIED
    told["allow_leading_hyphen"] = option.field == "user"  # "-" is standard input
    kind = list[option.kind] if option.several else option.kind  # type: ignore[name-defined]
    place = inspect.Parameter.POSITIONAL_ONLY if option.place else inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(
        option.field, place, default=option.default, annotation=Annotated[kind, Parameter(**told)]
    )


def help_of(name: str = "") -> str:
    """The help of a command, or of all that begin with a word, under their headings."""
    width = min(100, get_terminal_size().columns) - 1

    def listed(rows: Sequence[tuple[str, str]]) -> str:
        left = max(len(first) for first, _ in rows) + 4
        wrap = textwrap.TextWrapper(width, subsequent_indent=" " * left, break_on_hyphens=False)
        return "\n".join(wrap.fill(f"  {first}".ljust(left) + words) for first, words in rows)

    if name in names():
        options = options_of(name)
        needed = [one.shown for one in options if one.default is inspect.Parameter.empty]
        usage = " ".join([name, *needed, "[OPTIONS]"])
        told = (first_line(commands, name), *paragraphs(function_of(name)))
        lists = [listed([(one.shown, one.told) for one in options])]
        example = f"{name} {next(of[name] for of in COMMANDS.values() if name in of)}"
        if any(one.name == "--set" for one in options):
            lists.append(f"All else: userdp {name} --settings lists it.")
    else:
        usage, told, example = f"{name} COMMAND".strip(), _HELP, "demo --out demo"
        lists = []
        for heading, examples in COMMANDS.items():
            rows = [(one, first_line(commands, one)) for one in examples if one.startswith(name)]
            if not name and heading == _STORE:
                rows = [("store", ", ".join(one.split()[-1] for one in examples))]
            if rows:
                lists.append(f"{heading}:\n{listed(rows)}")
    wrapped = [textwrap.fill(one, width) for one in told]
    return "\n\n".join([f"Usage: userdp {usage}", *wrapped, *lists, f"Try: userdp {example}"])


def _whole(kind: Any, tokens: Sequence[Any]) -> int:
    """A whole number, as 1000 or 1e3; the library would round 1.5, and nobody would know."""
    value = float(tokens[0].value)
    if not value.is_integer():
        raise ValueError(f"{tokens[0].value} is no whole number")
    return int(value) if re.search("[.eE]", tokens[0].value) else int(tokens[0].value)
