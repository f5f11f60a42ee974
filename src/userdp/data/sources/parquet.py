"""Parquet files, folders of them and patterns such as ``lake/*/part-*``.

Expected input: a column for the user (text, whole numbers, or a list of such for several owners)
and one for the text; other columns are not read::

    user: string    text: string    date: timestamp
    ana             Good morning.   2024-05-01

Text columns may be strings, binary or dictionary-encoded; other types are refused at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from userdp.core.errors import UseError
from userdp.data.records import Drop, values_of
from userdp.data.sources.base import At, SourceOptions
from userdp.data.sources.rows import GENERATED, Row, told

WHAT = "Parquet files"
SUFFIXES = (".parquet", ".pq")
_BATCH = 2**13


def rows(
    path: Path, fields: Collection[str], options: SourceOptions, at: At
) -> Iterator[Row | Drop]:
    """The rows of a file; only the columns that matter are read."""
    with pq.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
        columns = wanted_columns(file.schema_arrow, fields, where=str(path))
        for batch in file.iter_batches(_BATCH, columns=columns):
            yield from batch_rows(batch)


def names(path: Path) -> list[str]:
    """The columns of a file; none of one that cannot be read, of which `rows` says why."""
    try:
        columns: list[str] = pq.read_schema(path).names
    except (pa.ArrowException, OSError):
        return []
    return columns


def batch_rows(batch: pa.RecordBatch) -> list[Row | Drop]:
    """The rows of a batch; strings come as their bytes, which may be invalid UTF-8."""
    columns = [column_values(column) for column in batch.columns]
    names = batch.schema.names
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def wanted_columns(schema: pa.Schema, fields: Collection[str], *, where: str) -> list[str]:
    """The columns of ``schema`` among ``fields``, in their order.

    Raises:
        UseError: there is none, one occurs twice, or one can hold neither users, texts nor dates.

    Returns:
        Their names; and that of the column that says which model wrote a text, if there is one.
    """
    names = [name for name in schema.names if name in fields]
    if not names:
        raise UseError(
            f"{where} has none of the columns {', '.join(fields)}; columns there: "
            f"{told(schema.names, fields)}",
            hint="name the right ones with --user and --text",
        )
    if len(set(names)) < len(names):
        raise UseError(f"{where} has two columns of one name among {names}")
    for name in names:
        kind = schema.field(name).type
        if not _can_be_used(kind):
            raise UseError(
                f"the column {name!r} of {where} holds {kind}: neither text nor whole numbers",
                hint='make them whole: astype("Int64")'
                if pa.types.is_floating(kind)
                else "name another with --user or --text",
            )
    marked = GENERATED in schema.names and GENERATED not in names
    if marked and _is_text(schema.field(GENERATED).type):
        names.append(GENERATED)
    return names


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    inner = kind.value_type if types.is_dictionary(kind) else kind
    checks = (types.is_string, types.is_large_string, types.is_string_view)
    return any(check(inner) for check in checks)


def _can_be_used(kind: pa.DataType) -> bool:
    types = pa.types
    inner = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_list(inner) or types.is_large_list(inner):
        inner = inner.value_type
        if types.is_struct(inner):
            return True
    checks = (
        types.is_string, types.is_large_string, types.is_string_view, types.is_binary,
        types.is_large_binary, types.is_integer, types.is_temporal, types.is_null,
    )  # fmt: skip
    return any(check(inner) for check in checks)


def column_values(column: pa.Array) -> list[Any]:
    """A column's values; strings as their bytes, what Python cannot hold as invalid bytes."""
    types = pa.types
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_string(column.type) or types.is_string_view(column.type):
        column = column.cast(pa.binary())
    elif types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    elif types.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    if types.is_binary(column.type) or types.is_large_binary(column.type):
        return values_of(column)
    return [_value(scalar) for scalar in column]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (UnicodeDecodeError, ValueError, OverflowError):  # in lists; dates beyond year 9999
        return b"\xff"  # read on as what it is: invalid
