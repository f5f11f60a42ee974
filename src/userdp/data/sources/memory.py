"""Tables that a program holds: data sets, data frames, Arrow tables, and any rows that are dicts.

``userdp.prepare(dataset, user="author", text="message", out="store")`` reads what has columns by
Arrow, a batch at a time, and everything else row by row. It is the one kind of source without a
name on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from userdp.data.progress import Progress
from userdp.data.records import Drop
from userdp.data.sources.arrow import batch_rows, wanted_columns
from userdp.data.sources.base import SourceOptions
from userdp.data.sources.conversations import conversation_parser, is_conversation
from userdp.data.sources.rows import Row, plain_parser
from userdp.data.sources.table import TableSource
from userdp.errors import UseError

_BATCH = 2**13


def build(table: Any, options: SourceOptions, *, kind: str | None = None) -> MemoryTable:
    """The source for a table in memory.

    Args:
        table: a `datasets.Dataset` (read through its transform, if it has one) or a streamed
            one, a data frame of pandas or polars, a `pyarrow.Table`, or anything that yields dicts.
        options: the fields of user, text and date, or of a conversation.
        kind: "conversations", or None: they are known by their columns, where it has any by name.

    Raises:
        UseError: it is none of these.
    """
    if kind not in (None, "conversations"):
        raise UseError(
            f"--source {kind} reads paths, and this is a table in memory",
            hint="leave --source out, or name the files",
        )
    if isinstance(table, Mapping):
        splits = ", ".join(map(str, table))
        raise UseError(
            f"one table is prepared at a time, and this is a mapping of several: {splits}",
            hint="name one of them, such as dataset['train']",
        )
    if not isinstance(table, Iterable) and _kind(table) not in _COLUMNS:
        raise UseError(
            f"a {type(table).__name__} is no table",
            hint="give a data set, a data frame, rows that are dicts, or the paths of files",
        )
    columns = {str(name) for name in column_names(table)}
    if kind == "conversations" or is_conversation(columns, options):
        parser = conversation_parser(options)
        return MemoryTable(kind="conversations", parser=parser, loss_mask=True, table=table)
    return MemoryTable(
        kind="memory", parser=plain_parser(options), several_owners=True, table=table
    )


def _is_transformed(table: Any) -> bool:
    """Whether it is a `datasets.Dataset` with a transform, such as a redaction, of its rows."""
    return _kind(table) == "datasets.Dataset" and table.format["type"] == "custom"


def column_names(table: Any) -> list[Any]:
    """The names of its columns; none of rows that only come one by one."""
    if _is_transformed(table):
        return list(next(iter(table), ()))
    for attribute in ("column_names", "columns"):
        names = getattr(table, attribute, None)
        if names is not None:
            return list(names)
    return list(table[0]) if isinstance(table, list) and table and table[0] else []


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryTable(TableSource):
    """Rows that a program holds.

    Args:
        table: see `build`.
    """

    table: Any
    size = None

    def facts(self) -> dict[str, Any]:
        """The fields."""
        return {"fields": list(self.parser.fields)}

    def rows(self, progress: Progress) -> Iterator[list[Row | Drop]]:
        """The rows; see `TableSource.rows`."""
        done = 0
        for rows in self._batches():
            yield rows
            done += len(rows)
            progress.at(done)

    def _batches(self) -> Iterator[list[Row | Drop]]:
        if _is_transformed(self.table) or _kind(self.table) not in _COLUMNS:
            yield from self._rows_of_dicts()
            return
        for table in _COLUMNS[_kind(self.table)](self.table):
            names = wanted_columns(table.schema, self.parser.fields, where="the table")
            for batch in table.select(names).to_batches(max_chunksize=_BATCH):
                yield batch_rows(batch)

    def _rows_of_dicts(self) -> Iterator[list[Row | Drop]]:
        rows = iter(self.table)
        while block := list(islice(rows, _BATCH)):
            yield [dict(row) if isinstance(row, Mapping) else Drop.NOT_AN_OBJECT for row in block]


def _of_pandas(frame: Any) -> pa.Table:
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError):
        mixed = [str(name) for name in frame.columns if frame[name].dtype == object]
    # Outside of the handler: the library's own words quote what stands in a cell.
    raise UseError(
        f"a column of the data frame holds values of several kinds; of objects are: "
        f"{', '.join(mixed) or 'none'}",
        hint="make users and texts strings, as with frame.astype({'user': str}), and drop others",
    )


def _kind(table: Any) -> str:
    return f"{type(table).__module__.split('.')[0]}.{type(table).__name__}"


def _of_dataset(table: Any) -> Any:
    columns = None if table.format["output_all_columns"] else table.format["columns"]
    return table.with_format("arrow", columns=columns).iter(batch_size=_BATCH)


_COLUMNS: dict[str, Callable[[Any], Iterable[pa.Table]]] = {
    "datasets.Dataset": _of_dataset,
    "pandas.DataFrame": lambda table: [_of_pandas(table)],
    "polars.DataFrame": lambda table: [table.to_arrow()],
    "pyarrow.Table": lambda table: [table],
}
"""What has columns, by its name, as Arrow tables; no library is imported for its own sake."""
