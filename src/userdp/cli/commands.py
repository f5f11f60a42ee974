"""The commands of ``userdp``: each is one function of `userdp.commands`, read as it is.

Its first line, its paragraphs and its ``Args`` are the help. A command is imported when it is
called; of all others one line is read, from their text.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import inspect
import os
import re
import types
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from operator import or_
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from cyclopts import App, Group, Parameter, Token
from cyclopts.argument import ArgumentCollection

from userdp import commands
from userdp.commands.documented import documented, first_line, paragraphs
from userdp.version import __version__

_MECHANISM = "--sampling-probability 0.01 --steps 1000 --delta 1e-6 --noise-multiplier 1"
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
    "A store's life": {
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
_TRIED = ("plan", "learning_rate", "l2_clip_norm", "optimizer")
"""Of `tune`: values stand behind one another."""
_HELP = """Fine-tune language models with user-level differential privacy.

Every command takes --json (one JSON object on stdout, errors too) and --config FILE (TOML, a \
section for each command, which options override). Exit status: 0 done, 1 failed, 2 bad use, 130 \
interrupted: what was paid for is finished first, and the last line says how to go on."""


def names() -> tuple[str, ...]:
    """All commands."""
    return tuple(name for examples in COMMANDS.values() for name in examples)


def command_of(tokens: Sequence[str]) -> str | None:
    """The command that a line begins with, if it is one."""
    line = " ".join(tokens[:2]) + " "
    return next((name for name in names() if line.startswith(f"{name} ")), None)


def module_of(name: str) -> ModuleType:
    """Where a command is: its function, and ``in_words`` of what that answers."""
    return import_module(f"{commands.__name__}.{name.split()[-1]}")


def function_of(name: str) -> Callable[..., Any]:
    """The function itself, as Python calls it."""
    function: Callable[..., Any] = getattr(module_of(name), name.split()[-1])
    return function


def build_app(wanted: Iterable[str] | None = None) -> App:
    """The program; with the options of the ``wanted`` commands only, since their code is loaded."""
    options: Any = {
        "print_error": False,
        "exit_on_error": False,
        "help_format": "plaintext",
        "result_action": "return_value",
        "suppress_keyboard_interrupt": False,  # by default it exits without a word
        "default_parameter": Parameter(negative=()),
    }
    app = App(name="userdp", help=_HELP, version=__version__, **options)
    app.help_epilogue = "Try: userdp demo --out demo"
    app.register_install_completion_command(group=(every := Group("Every command", sort_key=9)))
    for option in ("--help", "--version"):
        app[option].group = every
    loaded = names() if wanted is None else tuple(wanted)
    for rank, (heading, examples) in enumerate(COMMANDS.items()):
        group, place = Group(heading, sort_key=rank), app
        if any(" " in name for name in examples):
            words = ", ".join(name.split()[-1] for name in examples)
            place = App(name="store", help=f"{heading}: {words}.", group=group, **options)
            app.command(place)
        for order, (name, example) in enumerate(examples.items()):
            word = name.split()[-1]
            epilogue, told = f"Try: userdp {name} {example}", first_line(commands, word)
            function: Callable[..., Any] = _not_loaded
            if name in loaded:
                function = for_a_line(function_of(name))
                told = "\n\n".join([told, *paragraphs(function)])
                if "settings" in inspect.signature(function).parameters:
                    epilogue = f"All else: userdp {name} --settings lists it.  {epilogue}"
            place.command(
                function, name=word, help=told, help_epilogue=epilogue, group=group, sort_key=order
            )
    return app


def options_of(found: ArgumentCollection) -> dict[str, str]:
    """Name of a field to the option that fills it."""
    return {one.field_info.name: one.name for one in found if one.name.startswith("--")}


def for_a_line(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `userdp.commands` as the command-line library is to read it.

    The first argument has no name on a line. The fields of a dataclass are options, or settings
    where there are such; and whom to tell how far it is has only a program.
    """

    @functools.wraps(function)
    def command(*arguments: Any, **options: Any) -> Any:
        return function(*arguments, **options)

    hints = get_type_hints(function, localns=_Known(function.__globals__))
    words, parameters = documented(function), list[inspect.Parameter]()
    for one in inspect.signature(function).parameters.values():
        kinds = _kinds(hints[one.name])
        group = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        if one.name == "progress" or one.kind is one.VAR_KEYWORD:
            continue
        if group is None or {str, os.PathLike[str]} & {*kinds}:
            first = not parameters and one.kind is not one.KEYWORD_ONLY
            kind = one.POSITIONAL_ONLY if first else one.KEYWORD_ONLY
            hint = _on_a_line(one.name, kinds, one.default, words.get(one.name, ""))
            parameters.append(one.replace(annotation=hint, kind=kind))
        elif "settings" not in hints:
            told, of = documented(group), get_type_hints(group)
            for field in dataclasses.fields(group):
                hint = _on_a_line(
                    field.name, _kinds(of[field.name]), field.default, told[field.name]
                )
                parameters.append(
                    inspect.Parameter(
                        field.name, one.KEYWORD_ONLY, default=field.default, annotation=hint
                    )
                )
    # What `inspect.signature` reads first; typeshed lists it for no function.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    del command.__wrapped__
    return command


class _Known(dict[str, Any]):
    """A module's names; one that it knows for type checkers alone is anything."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _on_a_line(name: str, kinds: tuple[Any, ...], default: Any, words: str) -> Any:
    """The type of an argument as text can give it, and how the library is to take it."""
    told: dict[str, Any] = {
        "help": words.rstrip("."),
        "show_default": default not in ("", ()) and bool(default),
    }
    hint: Any = functools.reduce(or_, kinds)
    several = any(get_origin(kind) is Sequence for kind in kinds)
    if several and name in _TRIED:
        told["consume_multiple"] = True
        hint = list[Path] if name == "plan" else hint
    elif any(get_origin(kind) is os.PathLike or kind is Path for kind in kinds):
        hint = Path | None if type(None) in kinds else Path
    elif str in kinds and any(map(dataclasses.is_dataclass, kinds)):
        hint = str
    elif Any in kinds:
        hint = list[str]
    elif int in kinds:
        told["converter"] = _whole
    if default is True:  # only leaving out is an option
        told |= {"negative": f"--no-{name.replace('_', '-')}", "show_default": False}
    if name == "settings":
        told["name"] = "--set"
    if name == "user":  # it may be "-", which the library would take for an option
        told["allow_leading_hyphen"] = True
    return Annotated[hint, Parameter(**told)]


def _whole(kind: Any, tokens: Sequence[Token]) -> int:
    """A whole number, as 1000 or 1e3; the library would round 1.5, and nobody would know."""
    value = float(tokens[0].value)
    if not value.is_integer():
        raise ValueError(f"{tokens[0].value} is no whole number")
    return int(value) if re.search("[.eE]", tokens[0].value) else int(tokens[0].value)


def _not_loaded() -> None:
    """Stands for a command that was not called."""
