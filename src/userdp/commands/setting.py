"""``--set section.field=value``: every value that a command takes beside its options.

A section is a frozen dataclass of the room that owns it. Its fields are the settings, its docstring
documents them, and its types are what is checked. Options of a line are read by the same rules.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from datetime import date
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from userdp.core.codec import decode
from userdp.core.errors import UseError
from userdp.core.hints import closest, likely

_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    date: "a day, as 2026-01-31",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One value that a command can be given.

    Args:
        kind: its type.
        words: its meaning.
        default: None where it has none.
    """

    kind: Any
    words: str
    default: Any = None

    @property
    def meaning(self) -> str:
        """Its meaning and its default, for the help."""
        fixed = isinstance(self.default, str | int | float) and not isinstance(self.default, bool)
        return self.words.rstrip(".") + (f" [default: {self.default}]" if fixed else "")

    @property
    def kinds(self) -> tuple[Any, ...]:
        """Its type, and the members of the type if it is a union."""
        return (self.kind, *get_args(self.kind))

    @property
    def choices(self) -> list[str]:
        """Its values in words, where they are few."""
        kinds = [one for one in self.kinds if isinstance(one, type) and issubclass(one, Enum)]
        literal = get_args(self.kind) if get_origin(self.kind) is Literal else ()
        return [str(one.value) for kind in kinds for one in kind] + [*map(str, literal)]

    def read(self, text: str, *, place: str, listed: str) -> Any:
        """The value of its type that a text stands for.

        Args:
            text: a value as JSON has it, or plain words; of several values the only one.
            place: names it in errors.
            listed: where its values are described, for the hint.

        >>> Setting(kind=float, words="").read("1e3", place="--epsilon", listed="")
        1000.0
        >>> Setting(kind=str, words="").read('"ann"', place="--user", listed="")
        '"ann"'
        """
        if self.kind is str:
            return text  # as it stands: an id may have quotation marks
        if self.kind is Path:  # no shell expands ~ in a file, nor in --out=~/store
            return Path(os.path.expanduser(text))  # noqa: PTH111 (an unknown ~name stays)
        value: Any = text
        with suppress(ValueError):
            value = json.loads(text)
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # 1e3
        for meant in (value, text, [text]):
            with suppress(ValueError):
                return decode(self.kind, meant, what=place)
        wanted = next((_WORDS[one] for one in self.kinds if one in _WORDS), "text")
        if self.choices:
            wanted = f"one of {', '.join(self.choices)}"
        guess = likely(closest(text, self.choices))
        raise UseError(f"{place} must be {wanted}, got {text!r}", hint=f"{guess}{listed}")


Section = Mapping[str, Setting]


def refuse(cases: Mapping[str, Any]) -> None:
    """`UseError` of the first sentence whose condition holds: what is wrong, and the way out."""
    for sentence, wrong in cases.items():
        if wrong:
            raise UseError(sentence)


def documented(thing: Any) -> dict[str, str]:
    """The meaning of each name in the ``Args`` of a docstring, on one line."""
    block = re.search(r"\nArgs:\n(.*?)(?=\n\S|\Z)", inspect.getdoc(thing) or "", re.DOTALL)
    found = re.findall(r"(?m)^ {4}(\w+): (.*(?:\n {5,}.*)*)", block[1]) if block else []
    return {name: " ".join(words.split()) for name, words in found}


def section_of(kind: Any, *, without: Sequence[str] = ()) -> Section:
    """The fields of a dataclass as settings."""
    words, hints = documented(kind), get_type_hints(kind)
    return {
        one.name: Setting(
            kind=hints[one.name],
            words=words.get(one.name, ""),
            default=None if one.default is MISSING else one.default,
        )
        for one in fields(kind)
        if one.name not in without
    }


def samplings(*, without: Sequence[str] = ()) -> Section:
    """The kinds of sampling, and all constants of any of them."""
    from userdp.sampling import SAMPLINGS

    hints: dict[str, Any] = {}
    words: dict[str, list[str]] = {}
    for kind, sampling in SAMPLINGS.items():
        hints |= get_type_hints(sampling)
        for name, meaning in {"kind": sampling.words.draw, **sampling.words.options}.items():
            words.setdefault(name, []).append(f"{kind}: {meaning}")
    hints["kind"] = StrEnum("Kind", {kind: kind for kind in SAMPLINGS})
    return {
        name: Setting(kind=hints[name], words="; ".join(each))
        for name, each in words.items()
        if name not in without
    }


def read(
    given: Sequence[str], sections: Mapping[str, Section], *places: str, **arguments: Any
) -> dict[str, dict[str, Any]]:
    """The values that are set, by section and field, each of its declared type.

    Args:
        given: ``section.field=value`` each, a value as JSON has it or as plain text; of two for one
            field the last counts.
        sections: that the command knows.
        places: the sections that arguments belong to.
        arguments: each is set in the first of these places that has a field of its name. None says
            nothing.

    Raises:
        UseError: names a setting that there is none of, or whose value is of another type.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in sections}
    known = [f"{section}.{name}" for section, fields in sections.items() for name in fields]
    for one in [given] if isinstance(given, str) else given:
        place, equals, text = one.partition("=")
        section, _, name = place.strip().replace("-", "_").partition(".")
        if not equals or name not in sections.get(section, ()):
            guess = likely(closest(f"{section}.{name}" if name else f".{section}", known))
            raise UseError(
                f"--set {one}: " + ("there is no such setting" if equals else "it has no value"),
                hint=f"{guess}each is section.field=value; --settings lists them",
            )
        found[section][name] = sections[section][name].read(
            text.strip(), place=f"{section}.{name}", listed="--settings lists all"
        )
    for name, value in arguments.items():
        at = next((one for one in places if name in sections[one]), None)
        if at is None:
            near = closest(name, [field for one in places for field in sections[one]])
            raise UseError(f"there is no argument {name}", hint=likely(near).strip() or None)
        if value is not None:
            found[at][name] = Path(value) if Path in sections[at][name].kinds else value
    return found
