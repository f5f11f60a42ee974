"""Several sources as one: files of mixed kinds (JSON Lines, Parquet, CSV) in one store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from userdp.data.columns import Columns
from userdp.data.progress import Note, Progress
from userdp.data.records import Record, Tally
from userdp.data.sources.table import FileTable


@dataclass(frozen=True, kw_only=True, slots=True)
class Several:
    """Tables of files, one after another; their rows are all read by the same parser.

    Args:
        parts: at least one; of equal `FileTable.loss_mask`.
    """

    parts: tuple[FileTable, ...]
    public = False

    @property
    def kind(self) -> str:
        """The kinds that there are, as "csv+jsonl"."""
        return "+".join(sorted({part.kind for part in self.parts}))

    @property
    def several_owners(self) -> bool:
        """Whether a record of any part may name several."""
        return any(part.several_owners for part in self.parts)

    @property
    def loss_mask(self) -> bool:
        """Whether they are conversations."""
        return self.parts[0].loss_mask

    @property
    def size(self) -> int:
        """Bytes of all files, as they lie on disk."""
        return sum(part.size for part in self.parts)

    def records(self, tally: Tally, progress: Progress) -> Iterator[Record]:
        """The records of all parts; see `Source.records`."""
        return chain.from_iterable(self.blocks(tally, progress))

    def blocks(self, tally: Tally, progress: Progress) -> Iterator[Columns]:
        """The records of all parts; see `BlockSource.blocks`."""
        before = 0
        for part in self.parts:
            yield from part.blocks(tally, _After(progress, before))
            before += part.size

    def facts(self) -> dict[str, Any]:
        """Those of all parts: the fields, the number of files and bytes, and where text is from.

        Guarantee: what any part says of its text's provenance is said of the whole.
        """
        merged: dict[str, Any] = {}
        for part in self.parts:
            for name, value in part.facts().items():
                so_far = merged.get(name)
                if so_far is None:
                    merged[name] = value
                elif isinstance(value, list):
                    merged[name] = so_far + [one for one in value if one not in so_far]
                else:  # the numbers of files and bytes
                    merged[name] = so_far + value
        return merged

    def signature(self) -> str | None:
        """Those of all parts; see `SignedSource.signature`."""
        each = [part.signature() for part in self.parts]
        return None if None in each else repr(each)


class _After:
    """Progress of one part, told as that of the whole."""

    def __init__(self, progress: Progress, before: int) -> None:
        self._progress, self._before = progress, before

    def stage(
        self, name: str, total: int | None, *, unit: str = "", note: Note | None = None
    ) -> None:
        self._progress.stage(name, total, unit=unit, note=note)

    def at(self, done: int) -> None:
        self._progress.at(self._before + done)
