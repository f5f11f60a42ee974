"""Parquet files, folders of them (looked into deeply) and patterns such as ``lake/*/part-*``.

Expected input: a column for the user (text, whole numbers, or a list of such for several owners)
and one for the text; other columns are not read::

    user: string    text: string    date: timestamp
    ana             Good morning.   2024-05-01

Text columns may be strings, binary or dictionary-encoded; other types are refused at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from userdp.data.progress import Progress
from userdp.data.records import Drop, bounds_by_size
from userdp.data.sources import jsonl
from userdp.data.sources.arrow import batch_rows, wanted_columns
from userdp.data.sources.base import SourceOptions
from userdp.data.sources.paths import expand
from userdp.data.sources.rows import Row, plain_parser
from userdp.data.sources.table import FileTable
from userdp.errors import UseError, kind_of

SUFFIXES = (".parquet", ".pq")
_BATCH = 2**13


def build(paths: list[str], options: SourceOptions) -> FileTable:
    """The source for files, folders and patterns ``paths``."""
    files = expand(paths, suffixes=SUFFIXES, what="Parquet files", deep=True)
    return _ParquetFiles(
        kind="parquet", paths=files, parser=plain_parser(options), several_owners=True
    )


def build_table(
    paths: list[str], options: SourceOptions, *, suffixes: tuple[str, ...] = jsonl.SUFFIXES
) -> FileTable:
    """A table of Parquet files where all ``paths`` look so, else of JSON Lines."""
    there = [Path(name) for name in paths if Path(name).exists()]
    if there and all(matches(path) for path in there):
        return build(paths, options)
    return jsonl.build(paths, options, suffixes=suffixes)


def matches(path: Path) -> bool:
    """Whether the name, or for folders a name within, says Parquet."""
    names = path.rglob("*") if path.is_dir() else (path,)
    return any(file.name.endswith(SUFFIXES) for file in names)


@dataclass(frozen=True, kw_only=True, slots=True)
class _ParquetFiles(FileTable):
    """Parquet files; only the columns that matter are read.

    Args:
        groups: of one file: its row groups from the first on and before the second; None: all.
    """

    groups: tuple[int, int] | None = None

    def shards(self, size: int) -> Iterator[FileTable]:
        """Runs of row groups."""
        for one in self.each():
            (path,) = one.paths
            try:
                sizes = _group_sizes(path)
            except (pa.ArrowException, OSError):
                yield one  # `rows` says what is wrong with it
                continue
            for groups in bounds_by_size(sizes, records=len(sizes), size=size):
                yield replace(self, paths=(path,), groups=groups)
            if not len(sizes):
                yield one

    def first_fields(self) -> Iterator[Collection[str]]:
        """The columns; see `FileTable.first_fields`."""
        try:
            yield pq.read_schema(self.paths[0]).names
        except (pa.ArrowException, OSError):
            return  # `rows` says what is wrong with it

    def rows(self, progress: Progress) -> Iterator[list[Row | Drop]]:
        """The rows of all files; see `TableSource.rows`."""
        for path, _ in self.each_file(progress):
            try:
                with pq.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
                    names = wanted_columns(file.schema_arrow, self.parser.fields, where=str(path))
                    groups = None if self.groups is None else list(range(*self.groups))
                    for batch in file.iter_batches(_BATCH, row_groups=groups, columns=names):
                        yield batch_rows(batch)
            except (pa.ArrowException, OSError) as error:
                raise UseError(
                    f"{path} cannot be read to its end: {kind_of(error)}",
                    hint="is it a whole Parquet file?",
                ) from error


def _group_sizes(path: Path) -> NDArray[np.int64]:
    """int64 (row groups,): bytes of each, before compression."""
    with pq.ParquetFile(path) as file:
        groups = range(file.num_row_groups)
        return np.array([file.metadata.row_group(n).total_byte_size for n in groups], np.int64)
