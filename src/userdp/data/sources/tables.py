r"""Files of rows: JSON Lines, CSV and Parquet; each has a function that gives the rows of a file.

A row has a field for the user and one for the text (``--user user --text text``). Files, folders
(of which the files with the usual suffixes are read, in the order of their names) and patterns are
read one after another; a user's records keep the order of their rows. Other fields are not read. A
row that cannot be used is dropped and counted; a file that cannot be read to its end stops the
whole. ``--set input.date=creation_date --set input.held_out_from=2018-01-01`` holds out by date.

**jsonl.** One object per line, plain or gzip::

    {"user": "ana", "date": "2024-05-01", "text": "Good morning."}
    {"user": 17, "text": "A user may be a whole number."}
    {"user": ["ana", "ben"], "text": "Several owners: see `ownership`."}

Each line is read by the standard library's `json`. Faster parsers give other records and drops:
Arrow's takes ``-NaN`` and stops at ``Infinity``; `orjson` refuses ``NaN``, ``1e400`` and halves of
surrogate pairs even in fields that nobody reads, and makes long whole numbers, which may be users,
floats. Tokenizing takes many times longer than reading as it is.

**csv.** Comma-separated (``.csv``) or tab-separated (``.tsv``) values, plain or gzip, with a
header, in UTF-8, quoted as RFC 4180 says::

    user,date,text
    ana,2024-05-01,"Good morning, she said."
    17,2024-05-02,"A text may
    have several lines."

A row that does not fit (an open or a stray quotation mark, more or fewer fields than the header)
ends with an error that names its line: read on, it would give the rows after it to its user.
``csv_escape`` is for files that escape by a backslash, ``csv_no_quotes`` for files whose quotation
marks are ordinary characters.

**parquet.** A column for the user (text, whole numbers, or a list of such for several owners) and
one for the text (strings, plain or dictionary-encoded, or bytes); other columns are not read.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, tee
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from userdp.core.errors import UseError
from userdp.data.records import Drop
from userdp.data.sources.input_files import (
    GENERATED,
    beginning,
    expand,
    files_facts,
    holds,
    is_named,
    opened_text,
    provenance,
)
from userdp.data.sources.rows_to_records import Row, Table, plain_parser
from userdp.data.sources.source import At, SourceOptions

_REPORT_EVERY = 2**12
_ROWS_AT_ONCE = 2**13
_LONGEST_FIELD = 2**30
_DECODE = json.JSONDecoder().raw_decode
"""The value that a text begins with, and where it ends: `json.loads`, without its questions."""
_JSON_SPACE = " \t\n\r"
Fields = tuple[str, ...] | None


class Form(NamedTuple):
    """A form of file that holds rows: its suffixes, and what gives the rows of a file."""

    suffixes: tuple[str, ...]
    rows: Callable[[Path, Fields, SourceOptions, At], Iterator[Row | Drop]]


def open_tables(
    paths: Sequence[str],
    options: SourceOptions,
    *,
    form: str | None = None,
    more: tuple[str, ...] = (),
) -> Table:
    """The source for files, folders and patterns ``paths``.

    Args:
        paths: see `expand`.
        options: see there.
        form: of all files; None: each by its name, and JSON Lines where that says nothing.
        more: suffixes of further files of a folder that are read.
    """
    forms = FORMS if form is None else {form: FORMS[form]}
    suffixes = (*(suffix for one in forms.values() for suffix in one.suffixes), *more)
    files = expand(paths, suffixes=suffixes, what=" or ".join(forms))
    kinds = sorted({form or _form_of(path) for path in files})
    fields, parse = plain_parser(options)

    def rows(path: Path, fields: Fields, at: At) -> Iterator[Row | Drop]:
        return FORMS[form or _form_of(path)].rows(path, fields, options, at)

    return Table(
        kind="+".join(kinds),
        places=files,
        read=rows,
        several_owners=kinds != ["csv"],  # whose cells hold no lists
        fields=fields,
        parse=parse,
        facts={**files_facts(files), **provenance(files)},
    )


def _form_of(path: Path) -> str:
    return next((name for name, form in FORMS.items() if is_named(path, form.suffixes)), "jsonl")


def is_jsonl(path: Path) -> bool:
    """Whether the name, or for folders a name within, says JSON Lines; or a file begins with {."""
    named = holds(path, FORMS["jsonl"].suffixes)
    return named or (path.is_file() and beginning(path).lstrip().startswith(b"{"))


def _jsonl_rows(path: Path, fields: Fields, options: SourceOptions, at: At) -> Iterator[Row | Drop]:
    """The object of each line, or why there is none."""
    first = beginning(path).lstrip().split(b"\n", 1)[0].strip()
    if first == b"[" or first.startswith(b"[{"):
        raise UseError(
            f"{path} is one JSON array, and no line is a JSON object by itself",
            hint="split it into lines: jq -c '.[]' FILE > FILE.jsonl",
        )
    # Bytes that are not UTF-8 become surrogates, as in CSV: a text with them keeps its owners.
    errors = "strict" if fields is None else "surrogateescape"
    content, place = opened_text(path)
    with content:
        for number, line in enumerate(content):
            if number % _REPORT_EVERY == 0:
                at(place())
            yield _object_of(line if number else line.removeprefix(codecs.BOM_UTF8), errors)


def _object_of(line: bytes, errors: str) -> Row | Drop:
    try:
        content = line.decode(errors=errors).strip(_JSON_SPACE)
    except UnicodeDecodeError:
        return Drop.INVALID_UTF8
    try:
        value, end = _DECODE(content)
    except (ValueError, RecursionError):
        return Drop.INVALID_JSON if content.strip() else Drop.BLANK_LINE
    if end < len(content):
        return Drop.INVALID_JSON
    return value if isinstance(value, dict) else Drop.NOT_AN_OBJECT


def _csv_rows(path: Path, fields: Fields, options: SourceOptions, at: At) -> Iterator[Row | Drop]:
    """Each row by the names of the header, or why there is none."""
    content, place = opened_text(path)
    cells = _cells(path, content, options)
    _, header = next(cells, (0, list[str]()))
    columns_of(header, fields, where=str(path))
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
    delimiter = "\t" if is_named(path, (".tsv", ".tsv.gz")) else ","
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
        hint="mend that row; or give --set input.csv_escape=true where a backslash escapes marks, "
        "--set input.csv_no_quotes=true where they are ordinary characters; or read the file by a "
        "program of your own and give userdp.prepare the rows",
    )


def _parquet_rows(
    path: Path, fields: Fields, options: SourceOptions, at: At
) -> Iterator[Row | Drop]:
    """The rows of a file; only the columns that matter are read."""
    with pq.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
        columns = columns_of(file.schema_arrow.names, fields, where=str(path))
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=columns):
            yield from rows_of(batch, fields, where=str(path))


FORMS: Mapping[str, Form] = {
    "jsonl": Form((".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"), _jsonl_rows),
    "csv": Form((".csv", ".csv.gz", ".tsv", ".tsv.gz"), _csv_rows),
    "parquet": Form((".parquet", ".pq"), _parquet_rows),
}


def columns_of(names: Sequence[str], fields: Fields, *, where: str) -> list[str]:
    """The columns of a table that are read: those of ``fields`` and `GENERATED`; all for none.

    Raises:
        UseError: one that is read occurs twice.
    """
    wanted = names if fields is None else (*fields, GENERATED)
    own = [name for name in names if name in wanted]
    for name in own if fields else ():
        if own.count(name) > 1:
            raise UseError(
                f"{where} has {own.count(name)} columns named {name!r}: which one is meant?",
                hint="rename one of them",
            )
    return own or list(names)


def rows_of(batch: pa.RecordBatch, fields: Fields, *, where: str) -> list[Row | Drop]:
    """The rows of a batch of Arrow.

    Raises:
        UseError: a column of users or texts holds neither text nor whole numbers.
    """
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = column.type
        if name in (fields or ())[:2] and (pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise UseError(
                f"the column {name!r} of {where} holds {kind}: neither text nor whole numbers",
                hint='make whole numbers whole, as by astype("Int64"), or name another column with '
                "--user or --text",
            )
        columns[name] = _values(column)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _values(column: pa.Array) -> list[Any]:
    """A column's values; strings as bytes, which may be invalid UTF-8 in Parquet."""
    types, kind = pa.types, column.type
    inner = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner):
        column = column.cast(pa.large_binary())
    elif types.is_timestamp(kind) and kind.unit == "ns":
        column = column.cast(pa.timestamp("us", kind.tz), safe=False)
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):  # invalid UTF-8 in lists; dates beyond the year 9999
        return [_value(scalar) for scalar in column]
    return values


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return b"\xff"  # read on as what it is: invalid
