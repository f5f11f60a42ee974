r"""JSON Lines, plain or gzip: one object per line, with a field for the user and one for the text.

Expected input (``--user-field user --text-field text``)::

    {"user": "ana", "date": "2024-05-01", "text": "Good morning."}
    {"user": 17, "text": "A user may be a whole number."}
    {"user": ["ana", "ben"], "text": "Several owners: see `--owners`."}

Several files are read one after another; a folder stands for its ``*.jsonl`` and ``*.jsonl.gz``
files in the order of their names, a pattern for what it matches. A user's records keep the order of
the lines. Other fields are ignored. Lines that cannot be used are dropped and counted; a file that
cannot be read to its end (truncated gzip) or is no text stops the whole.

``--date-field creation_date --held-out-from 2018-01-01`` holds out by date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from userdp.data.ahead import ahead
from userdp.data.progress import Progress
from userdp.data.records import Drop
from userdp.data.sources.base import SourceOptions, require_no_max_users
from userdp.data.sources.native_json import NativeLines, whole_lines
from userdp.data.sources.paths import (
    READ_ERRORS,
    expand,
    open_text,
    total_size,
    unzipped,
    whole,
)
from userdp.data.sources.rows import Block, Row, plain_parser
from userdp.data.sources.table import TableSource

SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")


def build(paths: list[str], options: SourceOptions) -> TableSource:
    """The source for files, folders and patterns ``paths``."""
    require_no_max_users(options)
    files = expand(paths, suffixes=SUFFIXES, what="JSON Lines")
    return TableSource(
        kind="jsonl",
        reader=JsonRows(paths=files),
        parser=plain_parser(options),
        several_owners=True,
    )


def matches(path: Path) -> bool:
    """Whether the name, or for folders a name within, says JSON Lines; or a file begins with {."""
    if path.is_dir():
        return any(file.name.endswith(SUFFIXES) for file in path.iterdir())
    if path.name.endswith(SUFFIXES):
        return True
    try:
        with path.open("rb", buffering=0) as raw, unzipped(raw) as lines:
            return lines.read(64).lstrip().startswith(b"{")
    except READ_ERRORS:
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonRows:
    """Rows of JSON Lines files.

    Args:
        paths: plain or gzip files, told apart by their first bytes.
    """

    paths: tuple[Path, ...]

    @property
    def size(self) -> int:
        """Bytes of all files, as they lie on disk."""
        return total_size(self.paths)

    def facts(self) -> dict[str, Any]:
        """The number of files and bytes, and what a filter said of them."""
        return {"files": len(self.paths), "bytes": self.size, **provenance(self.paths)}

    def rows(self, progress: Progress, fields: tuple[str, ...]) -> Iterator[Row | Drop]:
        """The object of each line; see `Rows.rows`."""
        for number, lines in enumerate(self._lines(progress)):
            yield from _rows(lines, first=number == 0)

    def blocks(self, progress: Progress, fields: tuple[str, ...]) -> Iterator[Block]:
        """The same in blocks; see `BlockRows.blocks`."""
        parse = NativeLines(fields)
        for number, (lines, batch) in enumerate(ahead(parse, self._lines(progress), workers=2)):
            yield Block(batch, partial(_rows, lines, first=number == 0))

    def _lines(self, progress: Progress) -> Iterator[bytes]:
        """All files in blocks of whole lines."""
        done = 0
        for path in self.paths:
            with open_text(path, what="JSON Lines") as raw, unzipped(raw) as content:
                for lines in whole(path, whole_lines(content)):
                    yield lines
                    progress.at(done + raw.tell())
            done += path.stat().st_size
            progress.at(done)


def _rows(lines: bytes, *, first: bool) -> Iterator[Row | Drop]:
    for number, line in enumerate(BytesIO(lines)):  # cut at \n alone, unlike splitlines
        yield _parse(line, first=first and number == 0)


def _parse(line: bytes, *, first: bool) -> Row | Drop:
    try:
        content = line.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError:
        return Drop.INVALID_UTF8
    if not content.strip():
        return Drop.BLANK_LINE
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return Drop.INVALID_JSON
    return value if isinstance(value, dict) else Drop.NOT_AN_OBJECT


def provenance(paths: tuple[Path, ...]) -> dict[str, Any]:
    """What ``FILE.provenance.json`` beside the files says, as `userdp.data.overlap` wrote it."""
    found = []
    for path in paths:
        beside = path.with_name(f"{path.name}.provenance.json")
        if beside.is_file():
            found.append(json.loads(beside.read_bytes()))
    return {"filtered_against_private": found} if found else {}
