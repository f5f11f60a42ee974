"""A value that a command takes from a line or a file: how it is spelled, documented and read.

It is an option, or a setting that ``--set section.field=value`` reaches: a field of a frozen
dataclass of the room that owns it, whose docstring documents it. The declared type is what is
checked.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One value that a command can be given.

    Args:
        field: its name in Python.
        hint: its type there.
        words: its meaning.
        default: its value where nothing is given, if it has one.
        section: the section of ``--set`` that it belongs to; none of an option.
        place: whether a line gives it by its place, and not by a name.
    """

    field: str
    hint: Any
    words: str
    default: Any = None
    section: str = ""
    place: bool = False

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types of one value: the members of a union, or of a sequence."""
        return _members(self.hint)

    @property
    def several(self) -> bool:
        """Whether it takes several values."""
        return any(get_origin(one) in _SEQUENCES for one in (self.hint, *get_args(self.hint)))

    @property
    def choices(self) -> list[str]:
        """Its values in words, where they are few."""
        few = (one if isinstance(one, EnumType) else get_args(one) for one in self.kinds)
        return [str(value) for values in few for value in values]

    @property
    def meaning(self) -> str:
        """Its meaning and its default, for the help."""
        fixed = isinstance(self.default, str | int | float) and not isinstance(self.default, bool)
        return self.words.rstrip(".") + (f" [default: {self.default}]" if fixed else "")

    @property
    def name(self) -> str:
        """As it is typed: ``--micro-batch``, ``--no-base``, ``STORE``; of a section, ``clip.form``.

        Its section and its field are all that tells two settings of a command apart.
        """
        if self.section:
            return f"{self.section}.{self.field}"
        if self.place:
            return self.field.upper()
        return f"--{'no-' if self.default is True else ''}{self.field.replace('_', '-')}"

    @property
    def shown(self) -> str:
        """Its name as an option and the kind of its value, for the help."""
        return self.name if self.place else f"{self.name} {self._called[0]}".rstrip()

    @property
    def needed(self) -> bool:
        """Whether it must be given."""
        return self.default in (inspect.Parameter.empty, MISSING)

    @property
    def _called(self) -> tuple[str, str]:
        """The kind of its value, in the help and in errors."""
        called = (words for kind, words in _KINDS.items() if kind in self.kinds)
        return next(called, ("TEXT", "text"))

    def read(self, given: Any) -> Any:
        """The value for Python of what a line or a file gives, or of each where it takes several.

        Args:
            given: a value of TOML, a word of a line, or a list of either.

        Raises:
            UseError: a value is of another type.

        >>> Setting(field="epsilon", hint=float, words="").read("1e3")
        1000.0
        >>> Setting(field="user", hint=str, words="").read('"ann"')
        '"ann"'
        """
        if self.several and isinstance(given, str) and isinstance(as_json(given), list):
            given = as_json(given)
        read = tuple(self._one(one) for one in (given if isinstance(given, list) else [given]))
        return read if self.several else read[0]

    def _one(self, given: Any) -> Any:
        text = given if isinstance(given, str) else json.dumps(given, default=str)
        if Path in self.kinds:  # no shell expands ~ in a file, nor in --out=~/store
            return Path(os.path.expanduser(text))  # noqa: PTH111 (an unknown ~name stays)
        if str in self.kinds:
            return text  # as it stands: an id may have quotation marks
        value = as_json(text)
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # 1e3
        for kind, meant in product(self.kinds, (value, text)):
            with suppress(ValueError):
                return decode(kind, meant, what=self.name)
        choices = self.choices
        wanted = f"one of {', '.join(choices)}" if choices else self._called[1]
        guess, listed = likely(closest(text, choices)), "settings" if self.section else "help"
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


def fields_of(section: Section, place: str = "") -> dict[str, Setting]:
    """The fields of a section's dataclass, as settings of the section ``place``.

    A field that is a dataclass itself is given by a section of its own, if at all.
    """
    if section.of.__module__ == "userdp.sampling.base":  # an import for which no help waits
        found = _samplings(place)
    else:
        words, hints = documented(section.of), get_type_hints(section.of)
        found = {
            one.name: Setting(
                field=one.name,
                hint=hints[one.name],
                words=words.get(one.name, ""),
                default=one.default,
                section=place,
            )
            for one in fields(section.of)
            if not dataclass_of(hints[one.name])
        }
    return {name: one for name, one in found.items() if name not in section.without}


def _samplings(place: str) -> dict[str, Setting]:
    """The kinds of sampling, and all constants of any of them."""
    from userdp.sampling import SAMPLINGS

    found: dict[str, Setting] = {}
    for kind, sampling in SAMPLINGS.items():
        hints = {**get_type_hints(sampling), "kind": Literal[tuple(SAMPLINGS)]}
        for name, meaning in {"kind": sampling.words.draw, **sampling.words.options}.items():
            words = f"{found[name].words}; " if name in found else ""
            words += f"{kind}: {meaning}"
            found[name] = Setting(field=name, hint=hints[name], words=words, section=place)
    return found


def _members(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows: the members of a union, and of a sequence."""
    origin = get_origin(hint)
    if origin in (Union, UnionType, *_SEQUENCES):
        return tuple(kind for one in get_args(hint) for kind in _members(one))
    return (Path if origin is os.PathLike else hint,)
