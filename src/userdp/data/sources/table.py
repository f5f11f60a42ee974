"""Tables as sources: what reads rows, and the one path from a row to a record or a drop."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from userdp.data.columns import BlockBuilder, Columns
from userdp.data.progress import NoProgress, Progress
from userdp.data.records import Drop, Record, Tally
from userdp.data.sources.base import FileSource, PrivateSource
from userdp.data.sources.provenance import GENERATED, provenance
from userdp.data.sources.rows import Parser, PlainParser, Row
from userdp.data.sources.seen_fields import SeenFields

_ROWS_LOOKED_AT = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSource(PrivateSource):
    """Records from the rows of a table; a kind of table says how `rows` are read.

    Args:
        kind: see `Source`.
        parser: makes a record of a row.
        several_owners, loss_mask: see `Source`.
    """

    kind: str
    parser: Parser
    several_owners: bool = False
    loss_mask: bool = False

    def rows(self, progress: Progress) -> Iterator[list[Row | Drop]]:
        """Each row as field to value, or why it is none, in lists of bounded size."""
        raise NotImplementedError

    def records(self, tally: Tally, progress: Progress) -> Iterator[Record]:
        """The records of all rows; see `Source.records`."""
        return chain.from_iterable(self.blocks(tally, progress))

    def blocks(self, tally: Tally, progress: Progress) -> Iterator[Columns]:
        """The records of all rows; see `BlockSource.blocks`."""
        seen = SeenFields(self.parser.required)
        yield from self.part_blocks(tally, progress, seen)
        seen.require()

    def part_blocks(self, tally: Tally, progress: Progress, seen: SeenFields) -> Iterator[Columns]:
        """What `blocks` gives, for a table that is a part of one: ``seen`` judges the whole."""
        parse = self.parser.parse
        for rows in self.rows(progress):
            seen.look(rows)
            builder = BlockBuilder()
            for order, row in enumerate(rows, start=tally.records_read):
                if isinstance(row, Drop):
                    tally.drop(row)
                    continue
                if model := row.get(GENERATED):
                    tally.wrote(model.decode() if isinstance(model, bytes) else str(model))
                drop = parse(row, order, builder)
                if drop is not None:
                    tally.drop(drop)
            tally.read(len(rows))
            yield builder.block()


@dataclass(frozen=True, kw_only=True, slots=True)
class FileTable(TableSource, FileSource):
    """A table in files."""

    paths: tuple[Path, ...]

    def facts(self) -> dict[str, Any]:
        """The fields, the number of files and bytes, and what is said of where the text is from."""
        origin = provenance(self.paths)
        return {"fields": list(self.parser.fields), **FileSource.facts(self), **origin}

    def each(self) -> Iterator[FileTable]:
        """Each file by itself."""
        return (replace(self, paths=(path,)) for path in self.paths)

    def shards(self, size: int) -> Iterator[FileTable]:
        """Parts that other processes may read: one after another they give the rows of the whole.

        Args:
            size: about how many bytes of a file a part has, where its kind can be read in parts.
        """
        return self.each()

    def first_fields(self) -> Iterator[Collection[str]]:
        """The names of the fields of the first rows."""
        block = next(self.rows(NoProgress()), [])
        return (row.keys() for row in block[:_ROWS_LOOKED_AT] if not isinstance(row, Drop))

    def signature(self) -> str | None:
        """See `SignedSource.signature`."""
        if not isinstance(self.parser, PlainParser) or self.parser.user_of is not None:
            return None  # a function or a template, which no text names
        facts = [(path.absolute(), path.stat()) for path in self.paths]
        files = [(str(path), s.st_size, s.st_mtime_ns, s.st_ino) for path, s in facts]
        return repr((replace(self, paths=()), files))
