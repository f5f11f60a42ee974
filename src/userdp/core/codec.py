"""JSON: dataclasses as plain values and back, one strict reader of texts, and their writer.

**Dataclasses.** `encode` makes an object of a dataclass's fields, and `decode` a dataclass of
exactly these fields, each of its declared type. Before the fields stand the class variables
``schema`` (of a file) and ``kind``, if the class declares them. ``kind`` tells the members of a
union apart, or the subclasses of a class.

**Texts.** `parse` takes less than Python's own reader, whose input other readers understand
differently: of two equal keys the last one counts, so that one signature would cover two claims;
``NaN`` and ``1e999`` become numbers. `text_of` writes what `parse` reads.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import sys
import types
import typing
from collections.abc import Mapping
from datetime import date
from enum import EnumType
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from userdp.core.errors import UseError

T = TypeVar("T")


def encode(value: Any) -> Any:
    """``value`` as what JSON holds; equal values give equal results.

    Args:
        value: a dataclass, or what the fields of one may hold.

    Raises:
        UseError: a number is not finite.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _tags(type(value)) | {
            name: encode(_widened(getattr(value, name), hint))
            for name, hint in _fields(type(value)).items()
        }
    if isinstance(value, Mapping):
        return {str(key): encode(value[key]) for key in sorted(value)}
    if isinstance(value, tuple | list):
        return [encode(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise UseError(f"a number must be finite to be written down, got {value!r}")
    return value


def plain(value: Any) -> Any:
    """A value as JSON holds it, to be read and not to be decoded: what ``--json`` prints.

    Infinity and NaN, which JSON does not have, become words. What has a `to_dict` says itself.

    >>> plain({"epsilon": float("inf"), "run": Path("run"), "bounds": (1.0, 2.0)})
    {'epsilon': 'inf', 'run': 'run', 'bounds': [1.0, 2.0]}
    """
    text = json.dumps(value, default=_shown)
    return json.loads(text, parse_constant=lambda name: str(float(name)))


def _shown(value: Any) -> Any:
    """What `plain` makes of an object that JSON does not have."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    return dict(value) if isinstance(value, Mapping) else os.fspath(value)


def decode(kind: type[T], values: Any, *, what: str) -> T:
    """The inverse of `encode`: a dataclass (or a subclass of an abstract one) from plain values.

    Args:
        kind: the class that is expected.
        values: plain values, as of `json.loads`.
        what: names the whole in errors.

    Raises:
        UseError: a field is unknown, missing or of another type, or the class refuses a value.
    """
    return typing.cast(T, _decode(kind, values, what))


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal for equal values only."""
    return json.dumps(encode(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """SHA-256 of `canonical`."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


@cache
def _fields(kind: Any) -> dict[str, Any]:
    """The declared type of each field, by the field's name."""
    hints = typing.get_type_hints(kind)
    return {one.name: hints[one.name] for one in dataclasses.fields(kind)}


@cache
def _tags(kind: Any) -> dict[str, str | None]:
    """What tells a class apart: its class variables of such a name; None where it only declares it,
    for its subclasses to have.
    """
    declared = typing.get_type_hints(kind).keys() - _fields(kind).keys()
    return {name: getattr(kind, name, None) for name in ("schema", "kind") if name in declared}


def _classes(hint: Any) -> list[Any]:
    """The dataclasses that may stand where a dataclass is declared: its subclasses, and itself."""
    if not (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
        return []
    below = [one for subclass in hint.__subclasses__() for one in _classes(subclass)]
    return below if None in _tags(hint).values() else [*below, hint]


def _members(hint: Any) -> tuple[Any, ...]:
    """The types that a union stands for."""
    union = typing.get_origin(hint) in (Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _widened(value: Any, hint: Any) -> Any:
    """A whole number as a float where the field holds floats: 1 and 1.0 are equal."""
    kinds = _members(hint) if isinstance(value, int) and not isinstance(value, bool) else ()
    return float(value) if float in kinds and int not in kinds else value


def _decode(hint: Any, value: Any, at: str) -> Any:
    if hint is Any:
        return value
    members = _members(hint)
    if isinstance(value, dict) and (classes := [one for each in members for one in _classes(each)]):
        return _build(_of_kind(classes, value.get("kind"), at), value, at)
    for member in members:
        origin, arguments = typing.get_origin(member), typing.get_args(member)
        if origin is Literal and value in arguments:
            return value
        if origin in (tuple, list) and isinstance(value, list):
            return origin(_decode(arguments[0], one, f"{at}[{n}]") for n, one in enumerate(value))
        if origin in (Mapping, dict) and isinstance(value, dict):
            keys, values = arguments
            return {
                _decode(keys, _key(keys, key), at): _decode(values, one, f"{at}.{key}")
                for key, one in value.items()
            }
        if member in (type(None), bool, int, str) and type(value) is member:
            return value
        # NaN compares false; JSON has whole numbers of any length, which may fit no float.
        if member is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:
            return float(value)
        if member in (Path, date) and type(value) is str:
            return Path(value) if member is Path else date.fromisoformat(value)
        if isinstance(member, EnumType) and value in list(member):
            return member(value)
    raise UseError(f"{at} says what is none of its kind: {value!r:.200}")


def _key(hint: Any, key: str) -> str | int:
    """A key of a mapping; JSON has whole numbers as keys in words only."""
    return int(key) if hint is int and key.isdecimal() else key


def _of_kind(classes: list[Any], kind: object, at: str) -> Any:
    """The one of the classes that has this ``kind``; else one that has none.

    A dataclass with slots is made twice, and the first one lives on until it is collected: of two
    classes of one kind the last is the one that everybody knows.
    """
    named = [one for one in classes if _tags(one).get("kind") == kind]
    found = named or [one for one in classes if "kind" not in _tags(one)]
    if not found:
        names = ", ".join(sorted({_tags(one).get("kind") or one.__name__ for one in classes}))
        raise UseError(
            f"{at} is of kind {kind!r:.200}, which is none of: {names}",
            hint="where it is one of your own, import the module that defines it",
        )
    return found[-1]


def _build(kind: type, values: Mapping[str, Any], at: str) -> Any:
    tags, fields = _tags(kind), _fields(kind)
    for name, expected in tags.items():
        if values.get(name) != expected:
            raise UseError(
                f"{at} says {name} {values.get(name)!r:.200}, and this version knows {expected!r}",
                hint="make it again with this version of userdp",
            )
    given = values.keys() - tags.keys()
    if given != fields.keys():
        unknown, missing = sorted(given - fields.keys()), sorted(fields.keys() - given)
        raise UseError(f"the fields of {at} are off: unknown {unknown!r:.200}, missing {missing}")
    read = {name: _decode(hint, values[name], f"{at}.{name}") for name, hint in fields.items()}
    return kind(**read)


def parse(data: bytes | str, *, finite: bool = True) -> Any:
    """The value of a JSON text.

    Guarantee: no object of it has a key twice; with ``finite`` all its numbers are finite.

    Args:
        data: the text, whole.
        finite: refuse ``NaN``, ``Infinity`` and numbers too large for a float; where exact losses
            were written down, NaN may stand by right.

    Raises:
        ValueError: it is no such text; the words quote no string of it.

    >>> parse('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: a key stands twice in an object
    """
    value = json.loads(data, object_pairs_hook=_once)
    if finite:
        text_of(value)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key stands twice in an object")
    return values


def text_of(value: Any, *, finite: bool = True, indent: int | None = None) -> str:
    """A value as JSON, which `parse` reads again.

    Args:
        value: of dictionaries with words as keys, lists, strings, numbers, truth values, None.
        finite: refuse NaN and infinity, as `parse` does.
        indent: spaces for each level; all in one line by default.

    Raises:
        ValueError: a number is not finite.

    >>> text_of({"a": [1, 2.5]})
    '{"a":[1,2.5]}'
    """
    separators = (",", ":") if indent is None else None
    return json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, allow_nan=not finite
    )
