"""What a signature says to people: its arguments, their meaning, and the values that they may have.

Commands are functions: their types and docstrings are all that a command line knows of them.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from datetime import date
from enum import EnumType
from pathlib import Path
from typing import Any, get_args, get_origin

from userdp.core.codec import decode
from userdp.core.errors import UseError, likely

_IN_WORDS: dict[Any, str] = {
    Path: "a path",
    int: "a whole number",
    float: "a number",
    date: "a day, as 2026-01-31",
    bool: "true or false",
    str: "text",
}
"""The kinds of values that words can give; the first that an argument may have counts."""


class Argument:
    """An argument of a function, or a field of a dataclass.

    Args:
        one: of the signature.
        meaning: as the docstring has it.

    Attributes:
        name: in Python.
        needed: a value must be given.
        by_place: it may be given without its name.
        parts: all that its type is made of.
        kind: the type of a single value, if words can give it.
        choices: words that stand for a value.
        several: it takes a sequence.
        fields: the dataclass that it takes, if no word stands for one: it is given field by field.
        meaning: in a few words, with the choices and the default.
    """

    def __init__(self, one: inspect.Parameter, meaning: str) -> None:
        self.name, self.needed = one.name, one.default is one.empty
        self.by_place = one.kind is one.POSITIONAL_OR_KEYWORD
        self.parts = _parts(one.annotation)
        self.kind: Any = next((kind for kind in _IN_WORDS if kind in self.parts), None)
        self.choices = [part for part in self.parts if isinstance(part, str)]
        self.several = Sequence in self.parts or tuple in self.parts
        whole = str not in self.parts and one.kind is not one.VAR_KEYWORD
        self.fields: Any = whole and next(filter(is_dataclass, self.parts), None)
        told = isinstance(one.default, str | int | float) and one.default is not False
        default = f" [default: {one.default}]" if told else ""
        self.meaning = ": ".join(filter(None, [meaning.rstrip("."), ", ".join(self.choices)]))
        self.meaning += " [needed]" if self.needed else default

    def read(self, given: Any, *, name: str) -> Any:
        """What words mean, or the values of a file.

        Args:
            given: the words or values, or a single one.
            name: of the argument, in errors.

        Raises:
            UseError: it is no value of the argument, or there are several where one is wanted.

        >>> def tried(steps: int, *, rates: Sequence[float] = (), optimizer: str = "adamw"): ...
        >>> steps, rates, optimizer = arguments_of(tried)
        >>> steps.read("1e3", name="--steps"), rates.read(["1", ".5"], name="--rates")
        (1000, (1.0, 0.5))
        >>> steps.read("1.5", name="--steps")
        Traceback (most recent call last):
        userdp.core.errors.UseError: --steps must be a whole number, got '1.5'
        """
        each = given if isinstance(given, list) else [given]
        if (self.needed and not each) or (len(each) != 1 and not self.several):
            raise UseError(f"{name} is given {'twice' if each else 'no value'}, and one is wanted")
        meant = tuple(self._one(one, name) for one in each)
        return meant if self.several else meant[0]

    def _one(self, given: Any, name: str) -> Any:
        if given in self.choices:
            return self.choices[self.choices.index(given)]  # of an enumeration its member
        with suppress(ValueError):
            return decode(self.kind, _plain(self.kind, given), what=name)
        wanted = _IN_WORDS.get(self.kind) or f"one of {', '.join(self.choices)}"
        hint = likely(str(given), self.choices).strip() or None
        raise UseError(f"{name} must be {wanted}, got {given!r}", hint=hint)


def arguments_of(thing: Any) -> Iterator[Argument]:
    """The arguments of a function, or the fields of a dataclass; and, behind the keywords of a
    function, the fields of the dataclasses that these name.
    """
    meanings = dict(re.findall(r"(?m)^ {4}(\w+): (.*(?:\n {5,}.*)*)", inspect.getdoc(thing) or ""))
    for one in inspect.signature(thing, eval_str=True).parameters.values():
        yield Argument(one, meanings.get(one.name, ""))
        if one.kind is one.VAR_KEYWORD:
            groups = filter(inspect.isclass, get_args(one.annotation)[1:])
            for argument in (each for group in groups for each in arguments_of(group)):
                argument.fields = None  # given by whoever makes the group
                yield argument


def _parts(hint: Any) -> list[Any]:
    """All that a type is made of: what it is, and the members of unions and enumerations."""
    own = get_origin(hint) or hint
    inside = hint if isinstance(hint, EnumType) else get_args(hint)
    return [Path if own is os.PathLike else own, *(part for one in inside for part in _parts(one))]


def _plain(kind: Any, given: Any) -> Any:
    """A word, or a value of TOML, as JSON has values of a kind."""
    if kind in (Path, date, str) and not isinstance(given, bool | dict):
        # No shell expands ~ in a file, nor in --out=~/store.
        return os.path.expanduser(str(given)) if kind is Path else str(given)  # noqa: PTH111
    # 20_000 is written as in Python; 20.000, twenty thousand to some and twenty to others, is none.
    if isinstance(given, str) and not (kind is int and "." in given):
        given = float(given) if kind is float else json.loads(given.replace("_", ""))
    return int(given) if isinstance(given, float) and given.is_integer() else given  # 1e3
