"""Data sets of Hugging Face `datasets` (extra ``hf``): a hub name, or a folder that
``save_to_disk`` wrote.

Expected input: columns for user and text as in Parquet::

    userdp prepare enron_aeslc --source hf --user sender --text email_body
    userdp prepare my-saved-dataset/ --source hf --dataset-split train

``NAME:CONFIG`` names a configuration. Hub data sets are streamed, so nothing of them is held in
memory; no code of a data set is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.data.progress import Progress
from userdp.data.records import Drop
from userdp.data.sources.arrow import batch_rows, wanted_columns
from userdp.data.sources.base import SourceOptions
from userdp.data.sources.provenance import provenance
from userdp.data.sources.rows import Row, plain_parser
from userdp.data.sources.table import TableSource
from userdp.errors import UseError, kind_of
from userdp.extras import library

_BATCH = 1024
_MARKS = ("dataset_info.json", "dataset_dict.json", "state.json")


def build(paths: list[str], options: SourceOptions) -> _HubTable:
    """The source for data sets ``paths``."""
    if not paths:
        raise UseError("no input: name a data set of the hub, or a folder", hint="give a PATH")
    return _HubTable(
        kind="hf", parser=plain_parser(options), several_owners=True, names=tuple(paths),
        split=options.dataset_split,
    )  # fmt: skip


def matches(path: Path) -> bool:
    """Whether it is a folder that ``save_to_disk`` wrote."""
    return path.is_dir() and any((path / name).is_file() for name in _MARKS)


@dataclass(frozen=True, kw_only=True, slots=True)
class _HubTable(TableSource):
    """Data sets.

    Args:
        names: folders, or names on the hub.
        split: where a data set has several.
    """

    names: tuple[str, ...]
    split: str = "train"
    size = None

    def facts(self) -> dict[str, Any]:
        """The fields and the split; names on the hub are public, folders are not told."""
        hub = [name for name in self.names if not Path(name).exists()]
        told = provenance(Path(name) for name in self.names)
        return {"fields": list(self.parser.fields), "dataset_split": self.split, "hub": hub, **told}

    def rows(self, progress: Progress) -> Iterator[list[Row | Drop]]:
        """The rows of all data sets; see `TableSource.rows`."""
        done = 0
        for name in self.names:
            data = self._open(name)
            for table in data.with_format("arrow").iter(batch_size=_BATCH):
                names = wanted_columns(table.schema, self.parser.fields, where=name)
                for batch in table.select(names).to_batches():
                    yield batch_rows(batch)
                done += table.num_rows
                progress.at(done)

    def _open(self, name: str) -> Any:
        datasets = library("datasets", extra="hf", what="reading Hugging Face data sets")
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
                f"the data set {name} cannot be read: {kind_of(error)}",
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
