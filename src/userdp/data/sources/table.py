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
from userdp.data.sources.field_names import told
from userdp.data.sources.provenance import GENERATED, provenance
from userdp.data.sources.rows import Parser, PlainParser, Row
from userdp.errors import UseError

_ROWS_SHOWN = 20
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
        seen, parse = _SeenFields(self.parser.required), self.parser.parse
        before = tally.records_read
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
        seen.require(tally.records_read - before)


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
        return repr((self.kind, files, self.parser))


class _SeenFields:
    """Which fields the first rows have, for the message where a required one is never there."""

    def __init__(self, required: tuple[tuple[str, ...], ...]) -> None:
        self._missing = list(required)
        self._names: dict[str, None] = {}
        self._rows = 0

    def look(self, rows: list[Row | Drop]) -> None:
        """Look at rows until each required field was seen."""
        for row in rows:
            if not self._missing:
                return
            if not isinstance(row, Drop):
                self._rows += 1
                self._missing = [group for group in self._missing if not row.keys() & group]
                if self._rows <= _ROWS_SHOWN:
                    self._names.update(dict.fromkeys(row))

    def require(self, lines: int) -> None:
        """`UseError` if no row came of so many lines, or none had what is required."""
        if lines and not self._rows:
            raise UseError(
                "no line is a JSON object",
                hint="expected one object per line; a JSON array must be split into lines",
            )
        if self._rows and self._missing:
            wanted = " or ".join(repr(name) for name in self._missing[0])
            raise UseError(
                f"no record has the field {wanted}; fields there: "
                f"{told(self._names, self._missing[0])}",
                hint="name the right ones with --user and --text",
            )
