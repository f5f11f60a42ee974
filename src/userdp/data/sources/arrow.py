"""Arrow batches: rows of them, and which types can be used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from userdp.data.sources.rows import Row
from userdp.errors import UseError


def batch_rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a batch; strings come as their bytes, which may be invalid UTF-8."""
    columns = [column_values(column) for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


def require_type(name: str, kind: pa.DataType, *, where: str) -> None:
    """`UseError` for a column that can hold neither users, texts nor dates."""
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    checks = (
        pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary,
        pa.types.is_large_binary, pa.types.is_integer, pa.types.is_temporal, pa.types.is_null,
    )  # fmt: skip
    if any(check(inner) for check in checks):
        return
    if pa.types.is_list(inner) or pa.types.is_large_list(inner):
        item = inner.value_type
        if pa.types.is_struct(item) or any(check(item) for check in checks):
            return
    raise UseError(
        f"the column {name!r} of {where} holds {kind}: neither text nor whole numbers",
        hint="name another with --user-field or --text-field",
    )


def column_values(column: pa.Array) -> list[Any]:
    """A column's values; strings as their bytes, what Python cannot hold as invalid bytes."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    elif pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return _listed(column)


def _listed(column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (UnicodeDecodeError, ValueError, OverflowError):  # inside lists; dates beyond year 9999
        values = [_value(column[i]) for i in range(len(column))]
    return values


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (UnicodeDecodeError, ValueError, OverflowError):
        return b"\xff"  # read on as what it is: invalid
