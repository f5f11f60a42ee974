"""Looks for planted secrets in the bytes of an output, in whatever form they may stand there."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterator
from functools import cache, lru_cache

import numpy as np

from tests.secrets.planted import MARKS, Kind, Secrets

WINDOW = 6
"""So many tokens of a text in a row are no chance."""

_HEX = re.compile(rb"[0-9a-f]{12,}")
_LIST = re.compile(rb"\d{1,6}(?:\s*,\s*\d{1,6}){%d,}" % (WINDOW - 1))
_TYPES = ("<u2", "<i4", "<i8")


def findings(data: bytes, secrets: Secrets, *, allowed: frozenset[Kind] = frozenset()) -> list[str]:
    """What stands in ``data`` that is not ``allowed``: its kind, and how it is written there."""
    found = []
    for kind, look in _LOOKS.items():
        if kind not in allowed:
            found += [f"{kind}, {form}" for form in look(data, secrets)]
    return found


def _base64(mark: bytes) -> Iterator[bytes]:
    """What of base64 does not depend on the neighbours of ``mark``, at each of its three places."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + mark).rstrip(b"=")
        yield encoded[-(-before * 8 // 6) : len(encoded) - 1]


def _look_for_mark(kind: Kind):
    mark = MARKS[kind]
    encoded = [part for one in (mark, mark.capitalize()) for part in _base64(one.encode())]

    def look(data: bytes, secrets: Secrets) -> Iterator[str]:
        joined = re.sub(rb"\s+", b"", data)  # a terminal breaks lines within words
        if any(mark.encode() in place.lower() for place in (data, joined)):
            yield "as it is"
        if any(part in joined for part in encoded):
            yield "as base64"  # a picture in a page

    return look


def _look_for_tokens(data: bytes, secrets: Secrets) -> Iterator[str]:
    windows = _windows(secrets.tokens)
    for listed in _LIST.findall(data):
        numbers = tuple(int(one) for one in listed.split(b","))
        if any(numbers[at : at + WINDOW] in windows for at in range(len(numbers) - WINDOW + 1)):
            yield "as a list"
            break
    for name in _TYPES:
        size = np.dtype(name).itemsize
        for shift in range(size):
            whole = (len(data) - shift) // size
            if whole < WINDOW:
                continue
            values = np.frombuffer(data, name, whole, shift).astype(np.int64)
            rolled = np.lib.stride_tricks.sliding_window_view(values, WINDOW)
            near = (rolled >= 0).all(axis=1) & (rolled < 2**16).all(axis=1)
            if not windows.isdisjoint(map(tuple, rolled[near].tolist())):
                yield f"as {name}"
                break


@lru_cache
def _windows(texts: tuple[tuple[int, ...], ...]) -> frozenset[tuple[int, ...]]:
    """All windows of the texts."""
    return frozenset(one[at : at + WINDOW] for one in texts for at in range(len(one) - WINDOW + 1))


def _look_for_digests(data: bytes, secrets: Secrets) -> Iterator[str]:
    known = {one[:12].encode() for one in secrets.digests}
    if any(digits[:12] in known for digits in _HEX.findall(data.lower())):
        yield "in hexadecimal"


def _look_for_numbers(data: bytes, secrets: Secrets) -> Iterator[str]:
    try:
        said = data.decode()
    except UnicodeDecodeError:
        packed = (struct.pack(form, one) for one in secrets.measured for form in ("<f", "<d"))
        if any(one in data for one in packed):
            yield "a measurement, as the bytes of a float"
        return
    said = said.replace("&nbsp;", " ").replace("&#160;", " ")
    for number in sorted(secrets.numbers):
        grouped = "[,\\s\u00a0\u2009\u202f_]?".join(f"{number:,}".split(","))
        if re.search(rf"(?<![\w.,+-]){grouped}(?:\.0+)?(?![\w]|[.,]\d)", said):
            yield str(number)
    for value in sorted(secrets.measured):
        if _written(value).search(said):
            yield repr(value)


@cache
def _written(value: float) -> re.Pattern[str]:
    """A number of its own that is ``value``, rounded or in all its digits.

    Whole numbers are compared: the hundreds of coordinates of a picture hold every four digits.
    """
    exact = f"{value:.17f}"
    rounded = {f"{value:.{digits}f}" for digits in (4, 5, 6)}
    begun = {f"{value:.6f}", exact[: exact.index(".") + 7]}  # a float32 goes on otherwise
    patterns = [re.escape(repr(value))]
    patterns += [re.escape(one) for one in rounded if _tells(one)]
    patterns += [re.escape(one) + r"\d*" for one in begun if _tells(one)]
    return re.compile(rf"(?<![\d.])(?:{'|'.join(patterns)})(?!\d)")


def _tells(number: str) -> bool:
    """Whether it has digits enough to be nowhere by chance."""
    return len(number.replace(".", "").strip("0-")) >= 5


_LOOKS = {
    **{kind: _look_for_mark(kind) for kind in MARKS},
    Kind.TOKENS: _look_for_tokens,
    Kind.DIGEST: _look_for_digests,
    Kind.NUMBER: _look_for_numbers,
}
