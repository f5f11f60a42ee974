"""Data sets of Hugging Face `datasets` (extra ``hf``): a hub name, or a folder that
``save_to_disk`` wrote.

Expected input: columns for user and text as in Parquet::

    userdp prepare enron_aeslc --source hf --user-field sender --text-field email_body
    userdp prepare my-saved-dataset/ --source hf --dataset-split train

``NAME:CONFIG`` names a configuration. Hub data sets are streamed, so nothing of them is held in
memory; no code of a data set is run.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from userdp.data.progress import Progress
from userdp.data.records import Drop
from userdp.data.sources.arrow import batch_rows, require_type
from userdp.data.sources.base import SourceOptions, require_no_max_users
from userdp.data.sources.rows import Block, Row, plain_parser
from userdp.data.sources.table import TableSource
from userdp.errors import UseError

_BATCH = 1024
_MARKS = ("dataset_info.json", "dataset_dict.json", "state.json")


def build(paths: list[str], options: SourceOptions) -> TableSource:
    """The source for data sets ``paths``."""
    require_no_max_users(options)
    if not paths:
        raise UseError("no input: name a data set of the hub, or a folder", hint="give a PATH")
    reader = HubRows(names=tuple(paths), split=options.dataset_split)
    return TableSource(kind="hf", reader=reader, parser=plain_parser(options), several_owners=True)


def matches(path: Path) -> bool:
    """Whether it is a folder that ``save_to_disk`` wrote."""
    return path.is_dir() and any((path / name).is_file() for name in _MARKS)


@dataclass(frozen=True, kw_only=True, slots=True)
class HubRows:
    """Rows of data sets.

    Args:
        names: folders, or names on the hub.
        split: where a data set has several.
    """

    names: tuple[str, ...]
    split: str = "train"
    size = None

    def facts(self) -> dict[str, Any]:
        """The split; names on the hub are public, folders are not told."""
        hub = [name for name in self.names if not Path(name).exists()]
        return {"dataset_split": self.split, "hub": hub}

    def rows(self, progress: Progress, fields: tuple[str, ...]) -> Iterator[Row | Drop]:
        """The rows of all data sets; see `Rows.rows`."""
        for batch in self._batches(progress, fields):
            yield from batch_rows(batch)

    def blocks(self, progress: Progress, fields: tuple[str, ...]) -> Iterator[Block]:
        """The same in blocks; see `BlockRows.blocks`."""
        for batch in self._batches(progress, fields):
            yield Block(batch, partial(batch_rows, batch))

    def _batches(self, progress: Progress, fields: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        done = 0
        for name in self.names:
            data = self._open(name)
            for batch in data.with_format("arrow").iter(batch_size=_BATCH):
                names = [column for column in batch.column_names if column in fields]
                if not names:
                    raise UseError(
                        f"{name} has none of the columns {', '.join(fields)}; columns there: "
                        f"{', '.join(batch.column_names[:20])}",
                        hint="name the right ones with --user-field and --text-field",
                    )
                for column in names:
                    require_type(column, batch.schema.field(column).type, where=name)
                yield from batch.select(names).to_batches()
                done += batch.num_rows
                progress.at(done)

    def _open(self, name: str) -> Any:
        try:
            datasets = importlib.import_module("datasets")
        except ImportError as error:
            raise UseError(
                "reading Hugging Face data sets needs the library `datasets`",
                hint="pip install 'userdp[hf]'",
            ) from error
        dataset, _, config = name.partition(":")
        try:
            if Path(name).exists():
                data = datasets.load_from_disk(name)
            else:
                return datasets.load_dataset(
                    dataset, config or None, split=self.split, streaming=True
                )
        except (OSError, ValueError) as error:
            raise UseError(
                f"the data set {name} cannot be read: {str(error).splitlines()[0]}",
                hint="a folder must be what `save_to_disk` wrote; a name must be on the hub",
            ) from error
        if isinstance(data, dict):
            if self.split not in data:
                raise UseError(
                    f"{name} has no split {self.split!r}; splits there: {', '.join(data)}",
                    hint="give --dataset-split",
                )
            data = data[self.split]
        return data
