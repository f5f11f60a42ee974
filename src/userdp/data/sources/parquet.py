"""Parquet files, folders of them (looked into deeply) and patterns such as ``lake/*/part-*``.

Expected input: a column for the user (text, whole numbers, or a list of such for several owners)
and one for the text; other columns are not read::

    user: string    text: string    date: timestamp
    ana             Good morning.   2024-05-01

Text columns may be strings, binary or dictionary-encoded; other types are refused at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from userdp.data.progress import Progress
from userdp.data.records import Drop
from userdp.data.sources.base import SourceOptions, require_no_max_users
from userdp.data.sources.paths import expand, total_size
from userdp.data.sources.rows import Row, TableSource, plain_parser
from userdp.errors import UseError

SUFFIXES = (".parquet", ".pq")
_BATCH = 1024


def build(paths: list[str], options: SourceOptions) -> TableSource:
    """The source for files, folders and patterns ``paths``."""
    require_no_max_users(options)
    files = expand(paths, suffixes=SUFFIXES, what="Parquet files", deep=True)
    return TableSource(
        kind="parquet",
        reader=ParquetRows(paths=files),
        parser=plain_parser(options),
        several_owners=True,
    )


def matches(path: Path) -> bool:
    """Whether the name, or for folders a name within, says Parquet."""
    if path.is_dir():
        return any(file.name.endswith(SUFFIXES) for file in path.rglob("*"))
    return path.name.endswith(SUFFIXES)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetRows:
    """Rows of Parquet files; only the columns that matter are read."""

    paths: tuple[Path, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return total_size(self.paths)

    def facts(self) -> dict[str, Any]:
        """The number of files and bytes."""
        return {"files": len(self.paths), "bytes": self.size}

    def rows(self, progress: Progress, fields: tuple[str, ...]) -> Iterator[Row | Drop]:
        """The rows of all files; see `Rows.rows`."""
        done = 0
        for path in self.paths:
            try:
                with pq.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
                    names = [name for name in file.schema_arrow.names if name in fields]
                    for name in names:
                        require_type(name, file.schema_arrow.field(name).type, where=str(path))
                    if len(set(names)) < len(names):
                        raise UseError(f"{path} has two columns of one name among {names}")
                    if not names:
                        raise UseError(
                            f"{path} has none of the columns {', '.join(fields)}; columns there: "
                            f"{', '.join(file.schema_arrow.names[:20])}",
                            hint="name the right ones with --user-field and --text-field",
                        )
                    for batch in file.iter_batches(batch_size=_BATCH, columns=names):
                        yield from batch_rows(batch)
            except (pa.ArrowException, OSError) as error:
                raise UseError(
                    f"{path} cannot be read to its end: {str(error).splitlines()[0]}",
                    hint="is it a whole Parquet file?",
                ) from error
            done += path.stat().st_size
            progress.at(done)


def batch_rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a batch; strings come as their bytes, which may be invalid UTF-8."""
    columns = [_values(column) for column in batch.columns]
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


def _values(column: pa.Array) -> list[Any]:
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
