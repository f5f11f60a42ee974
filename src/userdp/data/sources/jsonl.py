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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from userdp.data.progress import Progress
from userdp.data.records import Drop
from userdp.data.sources.base import (
    SourceOptions,
    beginning,
    expand,
    holds,
    is_gzip,
    is_named,
    read_text,
)
from userdp.data.sources.rows import Row, plain_parser
from userdp.data.sources.table import FileTable
from userdp.errors import UseError

SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
_BLOCK = 2**18
_decode = json.JSONDecoder().raw_decode


def build(
    paths: list[str], options: SourceOptions, *, suffixes: tuple[str, ...] = SUFFIXES
) -> FileTable:
    """The source for files, folders (of files that end in ``suffixes``) and patterns ``paths``."""
    files = expand(paths, suffixes=suffixes, what="JSON Lines")
    return _JsonLines(kind="jsonl", paths=files, parser=plain_parser(options), several_owners=True)


def matches(path: Path) -> bool:
    """Whether the name, or for folders a name within, says JSON Lines; or a file begins with {."""
    if path.is_dir():
        return holds(path, SUFFIXES)
    return is_named(path, SUFFIXES) or beginning(path).lstrip().startswith(b"{")


@dataclass(frozen=True, kw_only=True, slots=True)
class _JsonLines(FileTable):
    """Files of JSON Lines, plain or gzip, told apart by their first bytes.

    Args:
        lines: of one plain file: only the lines that begin at these bytes, from the first on and
            before the second; None: all.
    """

    lines: tuple[int, int] | None = None

    def shards(self, size: int) -> Iterator[FileTable]:
        """Plain files in pieces; what is compressed is read from its beginning, so as a whole."""
        for one in self.each():
            (path,) = one.paths
            if is_gzip(path):
                yield one
                continue
            for begin in range(0, max(path.stat().st_size, 1), size):
                yield replace(self, paths=(path,), lines=(begin, begin + size))

    def rows(self, progress: Progress) -> Iterator[list[Row | Drop]]:
        """The object of each line; see `TableSource.rows`."""
        for path, before in self.each_file(progress):
            first = beginning(path).lstrip().split(b"\n", 1)[0].strip()
            if first == b"[" or first.startswith(b"[{"):
                raise UseError(
                    f"{path} is one JSON array, and no line is a JSON object by itself",
                    hint="split it into lines: jq -c '.[]' FILE > FILE.jsonl",
                )
            with read_text(path, what="JSON Lines") as (content, place):
                for block in _blocks(content) if self.lines is None else _part(content, self.lines):
                    yield [_parse(line) for line in _lines(block)]
                    progress.at(before + place())


def _blocks(content: IO[bytes]) -> Iterator[bytes]:
    """Blocks of whole lines of a file, without the mark that may stand before the first."""
    mark = codecs.BOM_UTF8
    while block := content.read(_BLOCK) + content.readline():
        yield block.removeprefix(mark)
        mark = b""


def _part(content: IO[bytes], lines: tuple[int, int]) -> Iterator[bytes]:
    """Blocks of the lines that begin at the bytes from ``lines[0]`` to before ``lines[1]``."""
    at, end = lines
    mark = b"" if at else codecs.BOM_UTF8
    if at:  # a line that begins before is the part's before; it may end right here
        content.seek(at - 1)
        at += len(content.readline()) - 1
    while at < end:
        # Up to the last byte before the end, whose line is the last one that begins before it.
        block = content.read(min(_BLOCK, end - 1 - at)) + content.readline()
        if not block:
            return
        at += len(block)
        yield block.removeprefix(mark)
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
