"""A value that a command takes from a line or a file: how it is spelled, documented and read.

It is an option, or a setting that ``--set section.field=value`` reaches: a field of a frozen
dataclass of the room that owns it, whose docstring documents it. The declared type is what is
checked. `argparse` describes an argument by an action; `Value` is one that knows this type.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from datetime import date
from enum import EnumType
from itertools import product
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from userdp.commands.arguments import Section
from userdp.core.codec import decode
from userdp.core.errors import UseError, closest, likely

_KINDS = {
    Path: ("PATH", "a path"),
    int: ("INT", "a whole number"),
    float: ("FLOAT", "a number"),
    date: ("DATE", "a day, as 2026-01-31"),
    bool: ("", "true or false"),
}
"""The types of values in the help and in errors; any other is a text."""
_SEQUENCES = (Sequence, tuple)


class Value(argparse.Action):
    """One value that a command can be given.

    Args:
        option_strings: how a line spells it; empty where its place says it, and of a setting.
        dest: the name of the argument in Python, or ``section.field`` of a setting.
        hint: its type in Python.
        words: its meaning.
        default: its value where nothing is given, if it has one.
        others: further words of `argparse`, which say nothing here.

    Attributes:
        name: as it is typed: ``--micro-batch``, ``--no-base``, ``STORE``, ``clip.form``.
        needed: whether it must be given.
        several: whether it takes several values.
        choices_in_words: its values, where they are few.
    """

    def __init__(
        self, option_strings: Sequence[str], dest: str, *, hint: Any, words: str, default: Any,
        **others: Any,
    ) -> None:  # fmt: skip
        self._kinds = _members(hint)
        self.several = any(get_origin(one) in _SEQUENCES for one in (hint, *get_args(hint)))
        self.needed = default in (inspect.Parameter.empty, MISSING)
        few = (one if isinstance(one, EnumType) else get_args(one) for one in self._kinds)
        self.choices_in_words = ", ".join(str(value) for values in few for value in values)
        called = (names for kind, names in _KINDS.items() if kind in self._kinds)
        metavar, self._wanted = next(called, ("TEXT", "text"))
        if not option_strings:
            metavar = dest if "." in dest else dest.upper()
        self.name = (*option_strings, metavar)[0]
        flag = option_strings and bool in self._kinds
        words = words.rstrip(".").replace("%", "%%")
        if isinstance(default, str | int | float) and not isinstance(default, bool):
            words += f" [default: {default}]"
        super().__init__(
            option_strings, dest, nargs=0 if flag else "+" if self.several else None,
            const=not default, default=argparse.SUPPRESS, metavar=metavar, help=words,
        )  # fmt: skip

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any
    ) -> None:
        """Take the words of a line; `read` makes values of them, as of those in a file."""
        before = getattr(namespace, self.dest, None)
        if before is not None and not self.several:
            message = f"{self.name} is given twice, and one is wanted"
            raise UseError(message, hint=f"see `{parser.prog} --help`")
        words = self.const if self.nargs == 0 else values
        setattr(namespace, self.dest, [*(before or []), *words] if self.several else words)

    @property
    def shown(self) -> str:
        """Its name and the kind of its value, for the help."""
        return " ".join([*self.option_strings, str(self.metavar)]).rstrip()

    def read(self, given: Any) -> Any:
        """The value for Python of what a line or a file gives, or of each where it takes several.

        Args:
            given: a value of TOML, a word of a line, or a list of either.

        Raises:
            UseError: a value is of another type.

        >>> Value(["--epsilon"], "epsilon", hint=float, words="", default=None).read("1e3")
        1000.0
        """
        if self.several and isinstance(given, str) and isinstance(as_json(given), list):
            given = as_json(given)
        read = tuple(self._one(one) for one in (given if isinstance(given, list) else [given]))
        return read if self.several else read[0]

    def _one(self, given: Any) -> Any:
        text = given if isinstance(given, str) else json.dumps(given, default=str)
        if Path in self._kinds:  # no shell expands ~ in a file, nor in --out=~/store
            return Path(os.path.expanduser(text))  # noqa: PTH111 (an unknown ~name stays)
        if str in self._kinds:
            return text  # as it stands: an id may have quotation marks
        value = as_json(text)
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # 1e3
        for kind, meant in product(self._kinds, (value, text)):
            with suppress(ValueError):
                return decode(kind, meant, what=self.name)
        choices, listed = self.choices_in_words, "settings" if "." in self.dest else "help"
        wanted, guess = self._wanted, likely(closest(text, choices.split(", ")))
        if choices:
            wanted = f"one of {choices}"
        message = f"{self.name} must be {wanted}, got {text!r}"
        raise UseError(message, hint=f"{guess}--{listed} describes it")


def as_json(text: str) -> Any:
    """The value that a text is in JSON; the text itself where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def documented(thing: Any) -> dict[str, str]:
    """The meaning of each name in the ``Args`` of a docstring, on one line."""
    block = re.search(r"\nArgs:\n(.*?)(?=\n\S|\Z)", inspect.getdoc(thing) or "", re.DOTALL)
    found = re.findall(r"(?m)^ {4}(\w+): (.*(?:\n {5,}.*)*)", block[1]) if block else []
    return {name: " ".join(words.split()) for name, words in found}


def dataclass_of(hint: Any) -> Any:
    """The dataclass that a type is, if no word stands for one: it is given field by field."""
    kinds = _members(hint)
    return None if str in kinds else next(filter(is_dataclass, kinds), None)


def fields_of(section: Section) -> dict[str, dict[str, Any]]:
    """Of each field of a section's dataclass what `Value` is told.

    A field that is a dataclass itself is given by a section of its own, if at all.
    """
    if section.of.__module__ == "userdp.sampling.base":  # an import for which no help waits
        found = _samplings()
    else:
        words, hints = documented(section.of), get_type_hints(section.of)
        found = {
            one.name: {
                "hint": hints[one.name],
                "words": words.get(one.name, ""),
                "default": one.default,
            }
            for one in fields(section.of)
            if not dataclass_of(hints[one.name])
        }
    return {name: one for name, one in found.items() if name not in section.without}


def _samplings() -> dict[str, dict[str, Any]]:
    """The kinds of sampling, and all constants of any of them."""
    from userdp.sampling import SAMPLINGS

    found: dict[str, dict[str, Any]] = {}
    for kind, sampling in SAMPLINGS.items():
        hints = {**get_type_hints(sampling), "kind": Literal[tuple(SAMPLINGS)]}
        for name, meaning in {"kind": sampling.words.draw, **sampling.words.options}.items():
            words = f"{found[name]['words']}; " if name in found else ""
            words += f"{kind}: {meaning}"
            found[name] = {"hint": hints[name], "words": words, "default": None}
    return found


def _members(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows: the members of a union, and of a sequence."""
    origin = get_origin(hint)
    if origin in (Union, UnionType, *_SEQUENCES):
        return tuple(kind for one in get_args(hint) for kind in _members(one))
    return (Path if origin is os.PathLike else hint,)
