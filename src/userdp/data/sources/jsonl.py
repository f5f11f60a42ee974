r"""JSON Lines, plain or gzip: one object per line, with a field for the user and one for the text.

Expected input (``--user user --text text``)::

    {"user": "ana", "date": "2024-05-01", "text": "Good morning."}
    {"user": 17, "text": "A user may be a whole number."}
    {"user": ["ana", "ben"], "text": "Several owners: see `--owners`."}

Several files are read one after another; a folder stands for its ``*.jsonl`` and ``*.jsonl.gz``
files in the order of their names, a pattern for what it matches. A user's records keep the order of
the lines. Other fields are ignored. Lines that cannot be used are dropped and counted; a file that
cannot be read to its end (truncated gzip) or is no text stops the whole.

``--date creation_date --held-out-from 2018-01-01`` holds out by date.

Every line is read by the standard library's `json`, alone, whatever the other lines are. Faster
parsers give other records and drops, so each would need a second path for what it reads otherwise:
Arrow's takes ``-NaN`` and stops at ``Infinity``; `orjson` (3.13) refuses ``NaN``, ``1e400`` and
halves of surrogate pairs even in fields that nobody reads, and makes long whole numbers, which may
be users, floats. Tokenizing takes fifteen times longer than reading as it is.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Collection, Iterator
from pathlib import Path

from userdp.core.errors import UseError
from userdp.data.records import Drop
from userdp.data.sources.base import At, SourceOptions, beginning, holds, is_named, opened_text
from userdp.data.sources.rows import Row

WHAT = "JSON Lines"
SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
_BLOCK = 2**18
_decode = json.JSONDecoder().raw_decode


def matches(path: Path) -> bool:
    """Whether the name, or for folders a name within, says JSON Lines; or a file begins with {."""
    if path.is_dir():
        return holds(path, SUFFIXES)
    return is_named(path, SUFFIXES) or beginning(path).lstrip().startswith(b"{")


def rows(
    path: Path, fields: Collection[str], options: SourceOptions, at: At
) -> Iterator[Row | Drop]:
    """The object of each line, or why there is none."""
    first = beginning(path).lstrip().split(b"\n", 1)[0].strip()
    if first == b"[" or first.startswith(b"[{"):
        raise UseError(
            f"{path} is one JSON array, and no line is a JSON object by itself",
            hint="split it into lines: jq -c '.[]' FILE > FILE.jsonl",
        )
    content, place = opened_text(path, what=WHAT)
    with content:
        mark = codecs.BOM_UTF8  # may stand before the first line
        while block := content.read(_BLOCK) + content.readline():
            yield from map(_parse, _lines(block.removeprefix(mark)))
            at(place())
            mark = b""


def _lines(block: bytes) -> list[str | None]:
    """The lines of a block of whole lines; None for one that is not UTF-8."""
    block = block.removesuffix(b"\n")
    try:
        return [*block.decode().split("\n")]  # unlike `splitlines`, which cuts at more
    except UnicodeDecodeError:
        if b"\n" not in block:
            return [None]
    return [text for line in block.split(b"\n") for text in _lines(line)]


def _parse(line: str | None) -> Row | Drop:
    if line is None:
        return Drop.INVALID_UTF8
    content = line.strip(" \t\r\n")  # JSON's own white space
    try:
        value, end = _decode(content)
    except (ValueError, RecursionError):
        return Drop.INVALID_JSON if content.strip() else Drop.BLANK_LINE
    if end != len(content):
        return Drop.INVALID_JSON
    return value if isinstance(value, dict) else Drop.NOT_AN_OBJECT
