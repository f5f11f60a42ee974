"""The one reader of JSON that somebody else may have written: what it lets through is harmless.

And what writes for it (`text_of`), so that nothing is written that it then refuses.

Python's own reader takes more than JSON, and readers differ in it: of two equal keys the last one
counts, ``NaN`` and ``1e999`` become numbers, half a surrogate becomes a string that no file and no
terminal takes, and brackets that are nested too deep end in a `RecursionError`, there or wherever
the value is walked through later.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

MOST_DEPTH = 100
"""Levels of nesting. What userdp writes has less than 20."""
_LONGEST = 80
_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
"""An escape, or a character, that may be half of a pair."""


def parse(data: bytes | str, *, finite: bool = True) -> Any:
    """The value of a JSON text in UTF-8.

    Guarantee: no object of it had a key twice; it is nested at most `MOST_DEPTH` levels; all its
    strings can be written as UTF-8; with ``finite`` all its numbers are finite.

    Args:
        data: the text, whole.
        finite: refuse ``NaN``, ``Infinity`` and numbers too large for a float; where exact losses
            were written down, NaN may stand by right.

    Raises:
        ValueError: it is no such text; the words quote no value of it.

    >>> parse('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: the key 'a' stands in it twice
    """
    text = data.decode("utf-8") if isinstance(data, bytes) else data
    numbers: dict[str, Any] = {"parse_constant": _no_constant, "parse_float": _float}
    try:
        value = json.loads(text, object_pairs_hook=_once, **(numbers if finite else {}))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if text.count("[") + text.count("{") > MOST_DEPTH and _depth(value) > MOST_DEPTH:
        raise ValueError("it is nested too deep")
    _require_characters(text, value)
    return value


def text_of(value: Any, *, finite: bool = True, indent: int | None = None) -> str:
    """A value as JSON, which `parse` reads again.

    Args:
        value: of dictionaries with words as keys, lists, strings, numbers, truth values, None.
        finite: refuse NaN and infinity, as `parse` does.
        indent: spaces for each level; all in one line by default.

    Raises:
        ValueError: a number is not finite; or a string is no text, such as the name of a file in
            bytes that are no UTF-8, which Python keeps as halves of surrogate pairs.

    >>> text_of({"a": [1, 2.5]})
    '{"a":[1,2.5]}'
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, indent=indent, separators=separators, allow_nan=not finite)
    _require_characters(text, value)
    return text


def _require_characters(text: str, value: Any) -> None:
    """`ValueError` if a string of a value, whose JSON is ``text``, cannot be written as UTF-8."""
    if not _HALF.search(text):
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair, which is no character") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:_LONGEST]!a} stands in it twice")
    return values


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number in it is too large")
    return number


def _depth(value: Any) -> int:
    """Levels of lists and objects; it keeps them in a list, as a stack would end."""
    deepest, left = 0, [(value, 1)]
    while left:
        inside, level = left.pop()
        if isinstance(inside, dict | list):
            deepest = max(deepest, level)
            inner = inside.values() if isinstance(inside, dict) else inside
            left.extend((one, level + 1) for one in inner if isinstance(one, dict | list))
    return deepest
