"""``--set section.field=value``: all that a command can be told beside its options.

A section is a frozen dataclass of the room that owns it. Its fields are the settings, its docstring
documents them, and its types are what is checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from userdp.codec import decode
from userdp.commands.documented import documented
from userdp.errors import UseError
from userdp.hints import closest

if TYPE_CHECKING:
    from userdp.reporting.table import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One field that can be set.

    Args:
        kind: its type.
        words: what it is.
        default: None where it has none.
    """

    kind: Any
    words: str
    default: Any = None

    @property
    def choices(self) -> list[str]:
        """Its values, where they are few."""
        kinds = [one for one in (self.kind, *get_args(self.kind)) if isinstance(one, type)]
        return [str(one.value) for kind in kinds if issubclass(kind, Enum) for one in kind]


Section = Mapping[str, Setting]


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
    """The kinds of sampling, and every constant that one of them has."""
    from userdp.sampling import SAMPLINGS

    told: dict[str, dict[str, list[str]]] = {"kind": {}}
    kinds: dict[str, Any] = {"kind": StrEnum("Kind", {kind: kind for kind in SAMPLINGS})}
    for kind, sampling in SAMPLINGS.items():
        kinds |= get_type_hints(sampling) | {"kind": kinds["kind"]}
        for name, words in {"kind": sampling.words.draw, **sampling.words.options}.items():
            told.setdefault(name, {}).setdefault(words, []).append(kind)
    return {
        name: Setting(
            kind=kinds[name],
            words="; ".join(f"{', '.join(who)}: {words}" for words, who in each.items()),
        )
        for name, each in told.items()
        if name not in without
    }


def read(given: Sequence[str], sections: Mapping[str, Section]) -> dict[str, dict[str, Any]]:
    """What is set, by section and field, each of its declared type.

    Args:
        given: ``section.field=value`` each, a value as JSON has it or as plain text; of two for one
            field the last counts.
        sections: that the command knows.

    Raises:
        UseError: names a setting that there is none of, or whose value is of another type.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in sections}
    known = [f"{section}.{name}" for section, fields in sections.items() for name in fields]
    for one in given:
        place, equals, text = one.partition("=")
        section, _, name = place.strip().replace("-", "_").partition(".")
        if not equals or name not in sections.get(section, ()):
            guess = closest(f"{section}.{name}" if name else f".{section}", known)
            raise UseError(
                f"--set {one}: " + ("there is no such setting" if equals else "it has no value"),
                hint=("" if guess is None else f"did you mean {guess}? ")
                + "each is section.field=value; --settings lists them",
            )
        found[section][name] = _value(sections[section][name], text.strip(), f"{section}.{name}")
    return found


def put(
    found: Mapping[str, dict[str, Any]],
    sections: Mapping[str, Section],
    places: Sequence[str],
    **arguments: Any,
) -> None:
    """Set what arguments say: each in the first of these sections that has a field of its name.

    Args:
        found: what `read` answered; it is changed.
        sections: that the command knows.
        places: names of sections.
        arguments: None says nothing.

    Raises:
        UseError: none of the sections has such a field.
    """
    for name, value in arguments.items():
        place = next((one for one in places if name in sections[one]), None)
        if place is None:
            guess = closest(name, [field for one in places for field in sections[one]])
            hint = None if guess is None else f"did you mean {guess}?"
            raise UseError(f"there is no argument {name}", hint=hint)
        if value is not None:
            is_path = Path in _kinds(sections[place][name])
            found[place][name] = Path(value) if is_path else value


def _value(setting: Setting, text: str, place: str) -> Any:
    if Path in _kinds(setting):
        return Path(text)
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if isinstance(value, float) and value.is_integer() and int in _kinds(setting):
        value = int(value)  # 1e3
    for candidate in (value, text, [text]):
        try:
            return decode(setting.kind, candidate, what=place)
        except UseError:
            continue
    wanted = f"one of {', '.join(setting.choices)}" if setting.choices else _told(setting)
    guess = closest(text, setting.choices)
    raise UseError(
        f"{place} must be {wanted}, got {text!r}",
        hint=None if guess is None else f"did you mean {guess}?",
    )


def _kinds(setting: Setting) -> tuple[Any, ...]:
    return (setting.kind, *get_args(setting.kind))


def _told(setting: Setting) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false"}
    return next((words[one] for one in _kinds(setting) if one in words), "text")


def listed(sections: Mapping[str, Section]) -> Iterator[Table]:
    """Every setting, with its default and what it is: what ``--settings`` prints."""
    from userdp.reporting.table import Table

    for name, section in sections.items():
        rows = []
        for field, one in section.items():
            choices = f" ({', '.join(one.choices)})" if one.choices and field != "kind" else ""
            words = f"{one.words.rstrip('.')}{choices}"
            rows.append((f"{name}.{field}", _shown(one.default), words))
        yield Table(columns=("setting", "default", "meaning"), rows=rows, caption=name)


def _shown(default: Any) -> str:
    if default is None or default == ():
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)
