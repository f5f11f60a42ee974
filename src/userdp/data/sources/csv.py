r"""Comma-separated (``.csv``) or tab-separated (``.tsv``) values, plain or gzip, with a header.

Expected input (``--user-field user --text-field text``)::

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
from pathlib import Path
from typing import Any

from userdp.data.progress import Progress
from userdp.data.records import Drop
from userdp.data.sources.base import SourceOptions, require_no_max_users
from userdp.data.sources.paths import (
    READ_ERRORS,
    expand,
    open_text,
    total_size,
    unzipped,
    words,
)
from userdp.data.sources.rows import Row, plain_parser
from userdp.data.sources.table import TableSource
from userdp.errors import UseError

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
_REPORT_EVERY = 1024
_LONGEST_FIELD = 2**30


def build(paths: list[str], options: SourceOptions) -> TableSource:
    """The source for files, folders and patterns ``paths``."""
    require_no_max_users(options)
    files = expand(paths, suffixes=SUFFIXES, what="CSV files")
    return TableSource(kind="csv", reader=CsvRows(paths=files), parser=plain_parser(options))


def matches(path: Path) -> bool:
    """Whether the name, or for folders a name within, says CSV."""
    names = path.iterdir() if path.is_dir() else (path,)
    return any(file.name.endswith(SUFFIXES) for file in names)


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvRows:
    """Rows of CSV files."""

    paths: tuple[Path, ...]

    @property
    def size(self) -> int:
        """Bytes of all files, as they lie on disk."""
        return total_size(self.paths)

    def facts(self) -> dict[str, Any]:
        """The number of files and bytes."""
        return {"files": len(self.paths), "bytes": self.size}

    def rows(self, progress: Progress, fields: tuple[str, ...]) -> Iterator[Row | Drop]:
        """The rows of all files; see `Rows.rows`."""
        done = number = 0
        for path in self.paths:
            with open_text(path, what="CSV") as raw, unzipped(raw) as content:
                for row in _rows(path, content, fields):
                    yield row
                    number += 1
                    if number % _REPORT_EVERY == 0:
                        progress.at(done + raw.tell())
            done += path.stat().st_size
            progress.at(done)


def _rows(path: Path, content: Any, fields: tuple[str, ...]) -> Iterator[Row | Drop]:
    csv.field_size_limit(_LONGEST_FIELD)
    # Bytes that are not UTF-8 become surrogates, which no encoder takes: the row is then counted.
    text = io.TextIOWrapper(content, "utf-8-sig", errors="surrogateescape", newline="")
    delimiter = "\t" if path.name.removesuffix(".gz").endswith(".tsv") else ","
    reader = csv.reader(text, delimiter=delimiter)
    header = _next(path, reader)
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
    while (row := _next(path, reader)) is not None:
        if isinstance(row, Drop):
            yield row
        else:
            yield dict(zip(header, row, strict=False)) if row else Drop.BLANK_LINE


def _next(path: Path, reader: Any) -> list[str] | Drop | None:
    try:
        row: list[str] = next(reader)
    except StopIteration:
        return None
    except csv.Error:
        return Drop.UNREADABLE
    except READ_ERRORS as error:
        raise UseError(
            f"{path} cannot be read to its end: {words(error)}; the records after that would be "
            "missing without a count",
            hint="copy the file again, or cut it where it is whole",
        ) from error
    return row
