"""The one reader of JSON files, and the writer of what it reads again.

Python's own reader takes more than JSON, and readers differ in it: of two equal keys the last one
counts, so that one signature would cover two claims; ``NaN`` and ``1e999`` become numbers, and
brackets that are nested too deep end in a `RecursionError`.
Its writer writes names of files that are no UTF-8 as halves of surrogate pairs, which no page and
no terminal takes.
"""

from __future__ import annotations

import json
import math
from typing import Any


def parse(data: bytes | str, *, finite: bool = True) -> Any:
    """The value of a JSON text in UTF-8.

    Guarantee: no object of it has a key twice; all its strings can be written as UTF-8; with
    ``finite`` all its numbers are finite.

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
    hooks: dict[str, Any] = {"parse_constant": _no_number, "parse_float": _finite}
    try:
        value = json.loads(text, object_pairs_hook=_once, **(hooks if finite else {}))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if "\\u" in text:
        text_of(value, finite=False)  # refuses half a pair
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
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair, which is no character") from None
    return json.dumps(value, indent=indent, separators=separators, allow_nan=not finite)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"the key {name[:80]!a} stands in it twice")
        values[name] = value
    return values


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError("a number in it is too large")
    return number
