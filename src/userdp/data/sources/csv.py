r"""Comma-separated (``.csv``) or tab-separated (``.tsv``) values, plain or gzip, with a header.

Expected input (``--user user --text text``)::

    user,date,text
    ana,2024-05-01,"Good morning, she said."
    17,2024-05-02,"A text may
    have several lines."

UTF-8, quoted as RFC 4180 says; CRLF and a byte-order mark are no trouble. Files, folders and
patterns as for JSON Lines; each file has its own header.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from userdp.data.progress import Progress
from userdp.data.records import Drop
from userdp.data.sources.base import SourceOptions
from userdp.data.sources.paths import expand, read_text
from userdp.data.sources.rows import Row, plain_parser
from userdp.data.sources.table import FileTable
from userdp.errors import UseError

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
_BLOCK = 1024
_LONGEST_FIELD = 2**30


def build(paths: list[str], options: SourceOptions) -> FileTable:
    """The source for files, folders and patterns ``paths``."""
    files = expand(paths, suffixes=SUFFIXES, what="CSV files")
    return _CsvFiles(kind="csv", paths=files, parser=plain_parser(options))


def matches(path: Path) -> bool:
    """Whether the name, or for folders a name within, says CSV."""
    names = path.iterdir() if path.is_dir() else (path,)
    return any(file.name.endswith(SUFFIXES) for file in names)


@dataclass(frozen=True, kw_only=True, slots=True)
class _CsvFiles(FileTable):
    """CSV and TSV files."""

    def rows(self, progress: Progress) -> Iterator[list[Row | Drop]]:
        """The rows of all files; see `TableSource.rows`."""
        for path, before in self.each_file(progress):
            with read_text(path, what="CSV") as (content, place):
                rows = _rows(path, content, self.parser.fields)
                while block := list(islice(rows, _BLOCK)):
                    yield block
                    progress.at(before + place())


def _rows(path: Path, content: IO[bytes], fields: tuple[str, ...]) -> Iterator[Row | Drop]:
    reader = _lines_of(path, content)
    header = next(reader, None)
    if header is None:
        return
    if isinstance(header, Drop):
        raise UseError(f"{path} has a header that cannot be read")
    for name in fields:
        if header.count(name) > 1:
            raise UseError(
                f"{path} has {header.count(name)} columns named {name!r}: which one is meant "
                "cannot be told",
                hint="rename one in the header",
            )
    for row in reader:
        if isinstance(row, Drop):
            yield row
        else:
            yield dict(zip(header, row, strict=False)) if row else Drop.BLANK_LINE


def _lines_of(path: Path, content: IO[bytes]) -> Iterator[list[str] | Drop]:
    """The header and all rows after it, as lists of cells."""
    csv.field_size_limit(_LONGEST_FIELD)
    # Bytes that are not UTF-8 become surrogates, which no encoder takes: the row is then counted.
    text = io.TextIOWrapper(content, "utf-8-sig", errors="surrogateescape", newline="")
    delimiter = "\t" if path.name.removesuffix(".gz").endswith(".tsv") else ","
    reader = csv.reader(text, delimiter=delimiter)
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield Drop.UNREADABLE
