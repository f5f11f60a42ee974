"""Tables that a program holds: data sets, data frames, Arrow tables, and any rows that are dicts.

``userdp.prepare(dataset, user="author", text="message", out="store")`` reads what has columns by
Arrow, a batch at a time, and everything else row by row.

Data sets of Hugging Face `datasets` (extra ``hf``) are the kind ``hf`` of the command line, by a
name on the hub, or a folder that ``save_to_disk`` wrote::

    userdp prepare enron_aeslc --source hf --user sender --text email_body
    userdp prepare my-saved-dataset/ --source hf --dataset-split train

``NAME:CONFIG`` names a configuration. Hub data sets are streamed, so nothing of them is held in
memory; no code of a data set is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from userdp.core.errors import UseError, kind_of
from userdp.core.extras import library
from userdp.data.progress import Progress
from userdp.data.records import Drop
from userdp.data.sources.base import SourceOptions, named
from userdp.data.sources.conversations import ConversationParser, is_conversation
from userdp.data.sources.parquet import batch_rows, wanted_columns
from userdp.data.sources.rows import GENERATED, Row, plain_parser
from userdp.data.sources.table import TableSource, provenance

_BATCH = 2**13
_FRAMES = ("polars.DataFrame", "polars.LazyFrame")
_MARKS = ("dataset_info.json", "dataset_dict.json", "state.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryTable(TableSource):
    """Rows that a program holds.

    Args:
        tables: see `table_source`; read one after another.
        origin: what is told of where they are from.
    """

    tables: tuple[Any, ...]
    origin: Mapping[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """The fields, and where the tables are from."""
        return {"fields": list(self.parser.fields), **self.origin}

    def rows(self, progress: Progress) -> Iterator[Row | Drop]:
        """The rows; see `TableSource.rows`."""
        for done, row in enumerate(chain.from_iterable(map(self._rows_of, self.tables))):
            if done % _BATCH == 0:
                progress.at(done)
            yield row

    def _rows_of(self, table: Any) -> Iterator[Row | Drop]:
        fields = self.parser.fields
        for part in _parts(table, fields):
            if isinstance(part, pa.Table):
                names = wanted_columns(part.schema, fields, where="the table")
                for batch in part.select(names).to_batches(max_chunksize=_BATCH):
                    yield from batch_rows(batch)
            else:
                rows = iter(part)
                yield from (dict(r) if isinstance(r, Mapping) else Drop.NOT_AN_OBJECT for r in rows)


def table_source(table: Any, options: SourceOptions, *, kind: str | None = None) -> MemoryTable:
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
    if isinstance(table, Mapping) and len(table) == 1:  # a `datasets.DatasetDict` of one split
        (table,) = table.values()
    if isinstance(table, Mapping):
        splits = ", ".join(map(str, table))
        raise UseError(
            f"one table is prepared at a time, and this is a mapping of several: {splits}",
            hint="name one of them, such as dataset['train']",
        )
    if not isinstance(table, Iterable | pa.Table) and _name(table) not in _FRAMES:
        raise UseError(
            f"a {type(table).__name__} is no table",
            hint="give a data set, a data frame, rows that are dicts, or the paths of files",
        )
    columns = {str(name) for name in column_names(table)}
    if kind == "conversations" or is_conversation(columns, options):
        parser = ConversationParser(options=options)
        return MemoryTable(kind="conversations", parser=parser, loss_mask=True, tables=(table,))
    return MemoryTable(
        kind="memory", parser=plain_parser(options), several_owners=True, tables=(table,)
    )


def is_saved(path: Path) -> bool:
    """Whether it is a folder that ``save_to_disk`` of `datasets` wrote."""
    return path.is_dir() and any((path / name).is_file() for name in _MARKS)


def open_hub(paths: list[str], options: SourceOptions) -> MemoryTable:
    """The source of kind "hf" for data sets of the hub, by name, or in folders.

    Names on the hub are public, and told; folders are not.
    """
    split = options.dataset_split
    tables = tuple(_opened(name, split) for name in named(paths, "data sets of the hub"))
    first = table_source(tables[0], options)
    hub = [name for name in paths if not Path(name).exists()]
    return replace(
        first,
        kind="conversations" if first.loss_mask else "hf",
        tables=tables,
        origin={"dataset_split": split, "hub": hub, **provenance(map(Path, paths))},
    )


def _opened(name: str, split: str) -> Any:
    """A split of a data set; that of a hub is streamed, and no code of it is run."""
    datasets = library("datasets", extra="hf", what="reading Hugging Face data sets")
    dataset, _, config = name.partition(":")
    try:
        if not Path(name).exists():
            return datasets.load_dataset(dataset, config or None, split=split, streaming=True)
        data = datasets.load_from_disk(name)
    except (OSError, ValueError) as error:
        raise UseError(
            f"the data set {name} cannot be read: {kind_of(error)}",
            hint="a folder must be what `save_to_disk` wrote; a name must be on the hub",
        ) from error
    if isinstance(data, dict) and split not in data:
        raise UseError(
            f"{name} has no split {split!r}; splits there: {', '.join(data)}",
            hint="give --dataset-split",
        )
    return data[split] if isinstance(data, dict) else data


def column_names(table: Any) -> list[Any]:
    """The names of its columns; none of rows that only come one by one."""
    if _is_transformed(table):
        return list(next(iter(table), ()))
    for attribute in ("column_names", "columns"):
        names = getattr(table, attribute, None)
        if names is not None:
            return list(names)
    return list(table[0]) if isinstance(table, list) and table and table[0] else []


def _parts(table: Any, fields: tuple[str, ...]) -> Iterable[Any]:
    """A table as Arrow tables, by what it is; no library is imported for its own sake.

    Anything else, and what no Arrow column can hold, as rows.
    """
    name = _name(table)
    if name == "datasets.Dataset" and not _is_transformed(table):
        columns = None if table.format["output_all_columns"] else table.format["columns"]
        parts = table.with_format("arrow", columns=columns).iter(batch_size=_BATCH)
        return (pa.table(part) if isinstance(part, dict) else part for part in parts)
    if name == "pandas.DataFrame":
        return [_of_pandas(table, fields)]
    if name == "polars.LazyFrame":
        table = table.collect()
    if name in _FRAMES:
        table = table.to_arrow()
    return [table]


def _of_pandas(frame: Any, fields: tuple[str, ...]) -> Any:
    """The columns that are read; row by row where they hold what no Arrow column can."""
    own = frame[[name for name in dict.fromkeys((*fields, GENERATED)) if name in frame.columns]]
    names = own if len(own.columns) else frame  # of which `wanted_columns` says what is missing
    try:
        return pa.Table.from_pandas(names, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        wanted_columns(pa.schema([(str(n), pa.null()) for n in names.columns]), fields, where="it")
        return names.to_dict("records")


def _is_transformed(table: Any) -> bool:
    """Whether it is a `datasets.Dataset` with a transform, such as a redaction, of its rows."""
    return _name(table) == "datasets.Dataset" and table.format["type"] == "custom"


def _name(table: Any) -> str:
    return f"{type(table).__module__.split('.')[0]}.{type(table).__name__}"
