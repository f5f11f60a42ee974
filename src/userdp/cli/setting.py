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
from enum import EnumType, StrEnum
from itertools import product
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from userdp.commands.arguments import Section
from userdp.core.codec import decode
from userdp.core.errors import (
    UseError,
    closest,
    likely,
)

_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    date: "a day, as 2026-01-31",
}
_SEQUENCES = (Sequence, tuple)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One value that a command can be given.

    Args:
        field: its name in Python.
        hint: its type there.
        words: its meaning.
        default: its value where nothing is given, if it has one.
        place: whether a line gives it by its place, and not by a name.
    """

    field: str
    hint: Any
    words: str
    default: Any = None
    place: bool = False

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types of one value: the members of a union, or of a sequence."""
        return _members(self.hint)

    @property
    def whole(self) -> Any:
        """The dataclass that it is, if no word stands for one: it is given field by field."""
        whole = next(filter(is_dataclass, self.kinds), None)
        return None if str in self.kinds else whole

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
        """Its spelling as an option: ``--micro-batch``, ``--no-base``, ``STORE``."""
        if self.place:
            return self.field.upper()
        if self.field == "settings":
            return "--set"
        return f"--{'no-' if self.default is True else ''}{self.field.replace('_', '-')}"

    @property
    def shown(self) -> str:
        """Its name as an option and the kind of its value, for the help."""
        kinds = {bool: "", Path: " PATH", str: " TEXT", int: " INT", float: " FLOAT"}
        kind = next((words for one, words in kinds.items() if one in self.kinds), " TEXT")
        return self.name if self.place else self.name + kind

    @property
    def needed(self) -> bool:
        """Whether it must be given."""
        return self.default in (inspect.Parameter.empty, MISSING)

    def read(self, given: bool | str | Sequence[str], *, place: str, listed: str) -> Any:
        """The value for Python of what a line or a file gives, or of each where it takes several.

        Args:
            given: values as JSON has them, or plain words; a flag is set or not.
            place: names it in errors.
            listed: where its values are described, for the hint.

        >>> Setting(field="epsilon", hint=float, words="").read("1e3", place="", listed="")
        1000.0
        >>> Setting(field="user", hint=str, words="").read('"ann"', place="", listed="")
        '"ann"'
        """
        if isinstance(given, bool):
            return given
        if isinstance(given, str):
            values = as_json(given) if self.several else None
            given = [*map(in_words, values)] if isinstance(values, list) else [given]
        read = tuple(self._one(word, place, listed) for word in given)
        return read if self.several else read[0]

    def _one(self, text: str, place: str, listed: str) -> Any:
        if Path in self.kinds:  # no shell expands ~ in a file, nor in --out=~/store
            return Path(os.path.expanduser(text))  # noqa: PTH111 (an unknown ~name stays)
        if str in self.kinds:
            return text  # as it stands: an id may have quotation marks
        value = as_json(text)
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # 1e3
        for kind, meant in product(self.kinds, (value, text)):
            with suppress(ValueError):
                return decode(kind, meant, what=place)
        wanted = next((_WORDS[one] for one in self.kinds if one in _WORDS), "text")
        if self.choices:
            wanted = f"one of {', '.join(self.choices)}"
        guess = likely(closest(text, self.choices))
        raise UseError(f"{place} must be {wanted}, got {text!r}", hint=f"{guess}{listed}")


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


def fields_of(section: Section) -> dict[str, Setting]:
    """The fields of a section's dataclass as settings."""
    if section.of.__module__ == "userdp.sampling.base":  # an import for which no help waits
        found = _samplings()
    else:
        words, hints = documented(section.of), get_type_hints(section.of)
        found = {
            one.name: Setting(
                field=one.name,
                hint=hints[one.name],
                words=words.get(one.name, ""),
                default=one.default,
            )
            for one in fields(section.of)
        }
    return {name: one for name, one in found.items() if name not in section.without}


def _samplings() -> dict[str, Setting]:
    """The kinds of sampling, and all constants of any of them."""
    from userdp.sampling import SAMPLINGS

    found: dict[str, Setting] = {}
    # mypy knows an enumeration only by names that are written out.
    names: Any = StrEnum("Kind", {kind: kind for kind in SAMPLINGS})  # type: ignore[misc]
    for kind, sampling in SAMPLINGS.items():
        hints = {**get_type_hints(sampling), "kind": names}
        for name, meaning in {"kind": sampling.words.draw, **sampling.words.options}.items():
            words = f"{found[name].words}; " if name in found else ""
            found[name] = Setting(field=name, hint=hints[name], words=f"{words}{kind}: {meaning}")
    return found


def in_words(value: Any) -> str:
    """A value of JSON or TOML as somebody would type it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _members(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows: the members of a union, and of a sequence."""
    origin = get_origin(hint)
    if origin in (Union, UnionType, *_SEQUENCES):
        return tuple(kind for one in get_args(hint) for kind in _members(one))
    return (Path if origin is os.PathLike else hint,)
