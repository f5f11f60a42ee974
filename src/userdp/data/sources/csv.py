r"""Comma-separated (``.csv``) or tab-separated (``.tsv``) values, plain or gzip, with a header.

Expected input (``--user user --text text``)::

    user,date,text
    ana,2024-05-01,"Good morning, she said."
    17,2024-05-02,"A text may
    have several lines."

UTF-8, quoted as RFC 4180 says; CRLF and a byte-order mark are no trouble. Files, folders and
patterns as for JSON Lines; each file has its own header.

A row that does not fit (an open or a stray quotation mark, more or fewer fields than the header)
ends with an error that names its line: read on, it would give the rows after it to its user.
``csv_escape`` is for files that escape by a backslash, ``csv_no_quotes`` for files whose quotation
marks are ordinary characters.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator
from itertools import islice, tee
from pathlib import Path
from typing import IO

from userdp.core.errors import UseError
from userdp.data.records import Drop
from userdp.data.sources.base import At, SourceOptions, opened_text
from userdp.data.sources.rows import Row

WHAT = "CSV files"
SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
_REPORT_EVERY = 1024
_LONGEST_FIELD = 2**30


def rows(
    path: Path, fields: Collection[str], options: SourceOptions, at: At
) -> Iterator[Row | Drop]:
    """Each row by the names of the header, or why there is none."""
    content, place = opened_text(path, what=WHAT)
    cells = _cells(path, content, options)
    _, header = next(cells, (0, list[str]()))
    for name in fields:
        if header.count(name) > 1:
            raise UseError(
                f"{path} has {header.count(name)} columns named {name!r}: which one is meant "
                "cannot be told",
                hint="rename one in the header",
            )
    for number, (line, row) in enumerate(cells):
        if number % _REPORT_EVERY == 0:
            at(place())
        if len(row) == len(header):
            yield dict(zip(header, row, strict=True))
        elif "".join(row).strip():
            raise _no_fit(path, line, f"has {len(row)} fields, and the header {len(header)}")
        else:
            yield Drop.BLANK_LINE


def _cells(
    path: Path, content: IO[bytes], options: SourceOptions
) -> Iterator[tuple[int, list[str]]]:
    """The header and all rows after it as lists of cells, each with its first line's number."""
    csv.field_size_limit(_LONGEST_FIELD)
    # Bytes that are not UTF-8 become surrogates, which no encoder takes: the row is counted.
    text = io.TextIOWrapper(content, "utf-8-sig", errors="surrogateescape", newline="")
    delimiter = "\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else ","
    framed = _framed(delimiter, escape=options.csv_escape)
    given, seen = tee(text)
    reader = csv.reader(
        given, strict=True, delimiter=delimiter, escapechar="\\" if options.csv_escape else None,
        quoting=csv.QUOTE_NONE if options.csv_no_quotes else csv.QUOTE_MINIMAL,
    )  # fmt: skip
    before = 0
    try:
        for row in reader:
            lines = "".join(islice(seen, reader.line_num - before))
            # The library takes a mark inside an unquoted field, as in `a, "b`, as it is.
            quoted = not options.csv_no_quotes and '"' in "".join(row)
            if quoted and not framed.fullmatch(lines):
                raise _no_fit(path, before + 1, "has a quotation mark inside an unquoted field")
            yield before + 1, row
            before = reader.line_num
    except csv.Error as error:
        what = f"has an open or a stray quotation mark ({error})"
        raise _no_fit(path, before + 1, what) from None


def _framed(delimiter: str, *, escape: bool) -> re.Pattern[str]:
    """What a row looks like by RFC 4180, with escapes by a backslash or without."""
    bar, escaped = (r"\\", r"|\\.") if escape else ("", "")
    field = rf'(?:"(?:[^"{bar}]|""{escaped})*+"|(?:[^"{bar}{delimiter}\r\n]{escaped})*+)'
    return re.compile(rf"{field}(?:{delimiter}{field})*+[\r\n]*", re.DOTALL)


def _no_fit(path: Path, line: int, what: str) -> UseError:
    """The error of a row after which nobody can tell whose text is whose."""
    return UseError(
        f"{path} cannot be read as CSV: the row that begins in line {line} {what}. From there on, "
        "text could go to a user who did not write it",
        hint="mend that row; or give --csv-escape where a backslash escapes quotation marks, "
        "--csv-no-quotes where they are ordinary characters; or read the file by a program of "
        "your own and give userdp.prepare the rows",
    )
