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
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from userdp.data.progress import Progress
from userdp.data.records import Drop
from userdp.data.sources.arrow import batch_rows, require_type
from userdp.data.sources.base import SourceOptions, require_no_max_users
from userdp.data.sources.paths import expand, total_size
from userdp.data.sources.rows import Block, Row, plain_parser
from userdp.data.sources.table import TableSource
from userdp.errors import UseError

SUFFIXES = (".parquet", ".pq")
_BATCH = 2**13


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
        for batch in self._batches(progress, fields):
            yield from batch_rows(batch)

    def blocks(self, progress: Progress, fields: tuple[str, ...]) -> Iterator[Block]:
        """The same in blocks; see `BlockRows.blocks`."""
        for batch in self._batches(progress, fields):
            yield Block(batch, partial(batch_rows, batch))

    def _batches(self, progress: Progress, fields: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
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
                    yield from file.iter_batches(batch_size=_BATCH, columns=names)
            except (pa.ArrowException, OSError) as error:
                raise UseError(
                    f"{path} cannot be read to its end: {str(error).splitlines()[0]}",
                    hint="is it a whole Parquet file?",
                ) from error
            done += path.stat().st_size
            progress.at(done)
