"""Tables that a program holds: data sets, data frames, Arrow tables, and any rows that are dicts.

``userdp.prepare(dataset, user="author", text="message", out="store")`` reads what hands out Arrow
(`pandas`, `polars`, `pyarrow`, DuckDB) by Arrow, data sets of Hugging Face `datasets` by batches
through their transforms, and everything else row by row.

Data sets of `datasets` (extra ``hf``) are the kind ``hf`` of the command line, by a name on the
hub, or a folder that ``save_to_disk`` wrote::

    userdp prepare enron_aeslc --source hf --user sender --text email_body
    userdp prepare my-saved-dataset/ --source hf --set input.dataset_split=train

``NAME:CONFIG`` names a configuration. Hub data sets are streamed, so nothing of them is held in
memory; no code of a data set is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from userdp.core.environment import library
from userdp.core.errors import UseError, kind_of
from userdp.data.records import Drop
from userdp.data.sources.conversations import as_conversations, or_conversations
from userdp.data.sources.input_files import provenance
from userdp.data.sources.rows_to_records import ROWS_LOOKED_AT, Row, Table, plain_parser
from userdp.data.sources.source import At, SourceOptions
from userdp.data.sources.tables import Fields, columns_of, rows_of

_BATCH = 2**13
_DATASETS = ("datasets.Dataset", "datasets.IterableDataset")
_MARKS = ("dataset_info.json", "dataset_dict.json", "state.json")


def table_source(table: Any, options: SourceOptions, *, kind: str | None = None) -> Table:
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
    if _name(table) == "polars.LazyFrame":
        table = table.collect()
    streamed = hasattr(table, "__arrow_c_stream__")
    if streamed and not (isinstance(table, Iterable) and column_names(table)):
        table = pa.table(table)  # DuckDB's, or a reader, whose rows come only once
    if not isinstance(table, Iterable | pa.Table):
        raise UseError(
            f"a {type(table).__name__} is no table",
            hint="give a data set, a data frame, rows that are dicts, or the paths of files",
        )
    fields, parse = plain_parser(options)
    source = Table(
        kind="memory", places=(table,), read=_rows, several_owners=True, fields=fields, parse=parse
    )
    if kind == "conversations":
        return as_conversations(source, options)
    return or_conversations(source, options, first_fields(table))


def is_saved(path: Path) -> bool:
    """Whether it is a folder that ``save_to_disk`` of `datasets` wrote."""
    return path.is_dir() and any((path / name).is_file() for name in _MARKS)


def open_hub(paths: list[str], options: SourceOptions) -> Table:
    """The source of kind "hf" for data sets of the hub, by name, or in folders.

    The store's facts hold names on the hub, which are public, and no names of folders.
    """
    split = options.dataset_split
    tables = [_opened(name, split) for name in paths]
    first, *others = [table_source(table, options) for table in tables]
    if any(one.loss_mask != first.loss_mask for one in others):
        raise UseError("some are conversations, and others are not", hint="prepare them apart")
    hub = [name for name in paths if not Path(name).exists()]
    return replace(
        first,
        kind="conversations" if first.loss_mask else "hf",
        places=tables,
        facts={**first.facts, "dataset_split": split, "hub": hub, **provenance(map(Path, paths))},
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
            hint="give --set input.dataset_split=NAME",
        )
    return data[split] if isinstance(data, dict) else data


def column_names(table: Any) -> list[Any]:
    """The names of its columns; none of rows that only come one by one."""
    for attribute in () if _is_transformed(table) else ("column_names", "columns"):
        names = getattr(table, attribute, None)
        if names is not None:
            return list(names)
    return []


def first_fields(table: Any) -> list[list[str]]:
    """The names of its columns; or of the fields of the first row, and of a list's first rows."""
    # A data set of `datasets` begins anew for each reader, and its transform may take no single
    # row; another iterator may not begin anew.
    most = ROWS_LOOKED_AT if isinstance(table, list) else int(_name(table) in _DATASETS)
    rows = [names] if (names := column_names(table)) else islice(table, most)
    return [list(map(str, row)) for row in rows if isinstance(row, Mapping | list)]


def _rows(table: Any, fields: Fields, at: At) -> Iterator[Row | Drop]:
    """The rows of a table; no library is imported for its own sake."""
    name = _name(table)
    if name in _DATASETS:
        if name == "datasets.Dataset" and not _is_transformed(table):
            shown = table.format
            columns = table.column_names if shown["output_all_columns"] else shown["columns"]
            wanted = columns_of(columns, fields, where="the data set")
            table = table.with_format(None, columns=wanted)
        for batch in table.iter(batch_size=_BATCH):
            rows = zip(*batch.values(), strict=True)
            yield from (dict(zip(batch, row, strict=True)) for row in rows)
    elif hasattr(table, "__arrow_c_stream__"):
        columns = columns_of(column_names(table), fields, where="the table")
        if name == "pandas.DataFrame":  # whose other columns may hold what no Arrow column can
            table = table[columns]
        try:
            held = pa.table(table)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            yield from table.to_dict("records")
            return
        for batch in held.select(columns).to_batches(max_chunksize=_BATCH):
            yield from rows_of(batch, fields, where="the table")
    else:
        for row in table:
            yield dict(row) if isinstance(row, Mapping) else Drop.NOT_AN_OBJECT


def _is_transformed(table: Any) -> bool:
    """Whether it is a `datasets.Dataset` with a transform, such as a redaction, of its rows."""
    return _name(table) == "datasets.Dataset" and table.format["type"] == "custom"


def _name(table: Any) -> str:
    return f"{type(table).__module__.split('.')[0]}.{type(table).__name__}"
