"""Changes of a file: by its structure where it has one, and by its bytes.

Most broken bytes stop at the first line of a parser. What a reader forgets is found by files that
are well-formed and say something odd: a field that is missing, of another type or huge.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

CANARY = "userdp-canary"
"""Part of every path among the values: who opens such a file took a value for a path."""
_DEEP = "[" * 100_000 + "]" * 100_000
_DEEP_ENOUGH = "[" * 400 + "]" * 400
_RAW = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 400, "1" * 5000, "-0.0", "1e-9",
    _DEEP, _DEEP_ENOUGH, '{"a":' * 400 + "1" + "}" * 400, '"\\ud800"', "01", "0x10", "'a'", "tru",
    "",
)  # fmt: skip
"""JSON as it stands, or no JSON at all."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3.5, -0.5, 1e-300, 1e300, 2**31, 2**32, 2**63, -(2**63) - 1,
    2**64, "", " ", "a", "0", "-1", "1e5", "nan", "inf", "none", "\0", "a\nb", "\r\n", "\x1b[31m",
    "\u202e", "é", "e\u0301", "٣", "²", "🙂" * 50, "x" * 100_000, "..", f"../../{CANARY}",
    f"/tmp/{CANARY}/a", "a/b", "C:\\con", "{", "<script>", [], {}, [[]], [None], ["a"], [1],
    {"a": 1}, {"": None}, {"kind": "x"}, [0] * 300, {"schema": 1},
)  # fmt: skip
_BYTES = (
    b"\0", b"\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3\x28", b"\xed\xa0\x80", b"\r\n", b"\n\n",
    b"\r", b'"', b"{", b"[", b"[" * 3000, b"\x1f\x8b", b"PK\x03\x04", b"ARROW1", b"PAR1",
    b"From x\n", b"\xff" * 8, b"\x7f" * 8, b"\0" * 64, b"%s%n", b",", b"\t", b"\x1a",
    b"\xe2\x80\xa8",
)  # fmt: skip
_LARGE = 2**200
_SPANS = (1, 2, 4, 8, 16, 64, 512)


def mutate(name: str, content: bytes, draw: random.Random) -> bytes:
    """The content of a file of this name, changed: some of its structure, or some bytes.

    Equal arguments give equal results.
    """
    structured = _STRUCTURED.get(PurePosixPath(name).suffix, _words)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        change = structured if draw.random() < 0.75 else _bytes
        content = change(content, draw)
    return content


def _bytes(content: bytes, draw: random.Random) -> bytes:
    """Flip, cut, repeat or put in some bytes."""
    data = bytearray(content)
    place = draw.randint(0, len(data))
    span = min(draw.choice(_SPANS), len(data) - place)
    what = draw.randrange(7)
    if what == 0:
        del data[place:]
    elif what == 1 and data:
        data[min(place, len(data) - 1)] ^= 1 << draw.randint(0, 7)
    elif what == 2:
        data[place:place] = draw.choice(_BYTES)
    elif what == 3:
        del data[place : place + span]
    elif what == 4:
        data[place : place + span] = draw.randbytes(span)
    elif what == 5:
        data[place:place] = data[place : place + span] * draw.choice((1, 3, 50))
    else:  # a number of a binary header
        number = draw.choice(
            (0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, draw.getrandbits(16))
        )
        data[place : place + 8] = struct.pack("<Q", number)[: draw.choice((2, 4, 8))]
    return bytes(data)


def _json(content: bytes, draw: random.Random) -> bytes:
    """One JSON value, with something in it changed."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return _bytes(content, draw)
    raws: list[str] = []
    changed = _changed(value, draw, raws)
    try:
        text = json.dumps(changed, indent=draw.choice((None, None, 2)), ensure_ascii=True)
    except (ValueError, RecursionError):
        return _bytes(content, draw)
    for number, raw in enumerate(raws):
        text = text.replace(f'"@raw{number}@"', raw)
    return _encoded(text, draw)


def _lines(content: bytes, draw: random.Random) -> bytes:
    """Lines of JSON, with one of them changed, moved, doubled or left out."""
    lines = content.split(b"\n")
    at = draw.randrange(len(lines))
    what = draw.randrange(10)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines.insert(draw.randrange(len(lines) + 1), lines[at])
    elif what == 2:
        other = draw.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif what == 3:
        lines.insert(at, draw.choice((b"", b"{}", b"[]", b"null", b"1", b'""', b"nan", b"[{}]")))
    else:
        lines[at] = _json(lines[at], draw).replace(b"\n", b" ")
    return draw.choice((b"\n",) * 9 + (b"\r\n",)).join(lines)


def _safetensors(content: bytes, draw: random.Random) -> bytes:
    """A header with something in it changed, and its right length."""
    if len(content) < 8 or draw.random() < 0.2:
        return _bytes(content, draw)
    size = int.from_bytes(content[:8], "little")
    header, rest = content[8 : 8 + size], content[8 + size :]
    header = _json(header, draw) if draw.random() < 0.9 else _bytes(header, draw)
    if draw.random() < 0.1:
        rest = _bytes(rest, draw)
    return struct.pack("<Q", len(header)) + header + rest


def _words(content: bytes, draw: random.Random) -> bytes:
    """Text, with one of its words or lines exchanged for another."""
    parts = content.split(draw.choice((b"\n", b" ", b",", b"=", b":")))
    if len(parts) < 2 or draw.random() < 0.2:
        return _bytes(content, draw)
    at = draw.randrange(len(parts))
    old = parts[at]
    value = draw.choice(VALUES)
    text = value if isinstance(value, str) else json.dumps(value)
    new = draw.choice(
        (text.encode("utf-8", "surrogatepass"), parts[draw.randrange(len(parts))], b"")
    )
    return content.replace(old, new, 1) if old else content + new


_STRUCTURED: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".json": _json,
    ".jsonl": _lines,
    ".ndjson": _lines,
    ".safetensors": _safetensors,
    ".arrow": _bytes,
    ".parquet": _bytes,
    ".npy": _bytes,
    ".gz": _bytes,
    ".zip": _bytes,
    ".sqlite": _bytes,
}


def _encoded(text: str, draw: random.Random) -> bytes:
    """As UTF-8, and now and then with a mark before it, other line ends, or otherwise."""
    if draw.random() < 0.9:
        return text.encode("utf-8", "surrogatepass")
    return draw.choice(
        (
            lambda: b"\xef\xbb\xbf" + text.encode("utf-8", "surrogatepass"),
            lambda: text.encode("utf-16", "surrogatepass"),
            lambda: text.replace("\n", "\r\n").encode("utf-8", "surrogatepass"),
            lambda: text.encode("utf-8", "surrogatepass")[: draw.randint(0, len(text))],
            lambda: text.encode("latin-1", "replace"),
        )
    )()


def _places(value: Any, into: list[tuple[Any, Any]], depth: int = 0) -> None:
    """Every (container, key) in a value."""
    if depth > 50:
        return
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        into.append((value, key))
        if isinstance(inner, dict | list):
            _places(inner, into, depth + 1)


def _changed(value: Any, draw: random.Random, raws: list[str]) -> Any:
    """``value`` with one thing in it changed; text that is to stand there as it is goes to raws."""

    def odd() -> Any:
        if draw.random() < 0.3:
            raws.append(draw.choice(_RAW))
            return f"@raw{len(raws) - 1}@"
        return draw.choice(VALUES)

    places: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        _places(value, places)
    if not places or draw.random() < 0.02:
        return odd()
    inside, key = draw.choice(places)
    old = inside[key]
    what = draw.randrange(9)
    if what == 0:
        del inside[key]
    elif what == 1 and isinstance(inside, dict):
        inside[draw.choice((f"{key}_", str(key).upper(), "", "kind", "schema", "prev"))] = (
            inside.pop(key)
        )
    elif what == 2 and isinstance(inside, dict):  # the key stands twice
        raws.append(f"{json.dumps(old)}, {json.dumps(str(key))}: {json.dumps(draw.choice(VALUES))}")
        inside[key] = f"@raw{len(raws) - 1}@"
    elif what == 3:
        other, where = draw.choice(places)
        inside[key] = json.loads(json.dumps(other[where]))
    elif what == 4 and isinstance(old, list | str) and len(old) < 1000:
        inside[key] = old * draw.choice((2, 5, 100))
    elif what == 5 and isinstance(old, int | float) and not isinstance(old, bool):
        old = old if abs(old) < _LARGE else 1  # what grew before must not grow without end
        inside[key] = draw.choice((-old, old + 1, old * 2**40, float(old), str(old), [old]))
    elif what == 6 and isinstance(old, str):
        inside[key] = draw.choice((old[:-1], old.upper(), old + "\0", [old], f"{old} ", old * 2))
    else:
        inside[key] = odd()
    return value
