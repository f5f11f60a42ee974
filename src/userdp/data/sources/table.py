"""Tables as sources: a reader of rows, and a parser that makes records of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from userdp.data.columns import Columns, batched
from userdp.data.progress import Progress
from userdp.data.records import Drop, Record, Tally
from userdp.data.sources.base import PrivateSource
from userdp.data.sources.plain import parse_columns
from userdp.data.sources.rows import BlockRows, FileRows, Parser, PlainParser, Row, Rows
from userdp.errors import UseError

_FIELDS_SHOWN = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSource(PrivateSource):
    """Records from the rows of a table.

    Args:
        kind: see `Source`.
        reader: of the rows.
        parser: of a row.
        several_owners, loss_mask: see `Source`.
    """

    kind: str
    reader: Rows
    parser: Parser
    several_owners: bool = False
    loss_mask: bool = False

    @property
    def size(self) -> int | None:
        """The reader's."""
        return self.reader.size

    def facts(self) -> dict[str, Any]:
        """The fields, and what the reader says of itself."""
        return {"fields": list(self.parser.fields), **self.reader.facts()}

    def signature(self) -> str | None:
        """See `SignedSource.signature`."""
        plain = isinstance(self.parser, PlainParser) and self.parser.user_of is None
        if not plain or not isinstance(self.reader, FileRows):
            return None
        facts = [(path.absolute(), path.stat()) for path in self.reader.paths]
        files = [(str(path), s.st_size, s.st_mtime_ns, s.st_ino) for path, s in facts]
        return repr((self.kind, files, self.parser))

    def records(self, tally: Tally, progress: Progress) -> Iterator[Record]:
        """The records of all rows; see `Source.records`."""
        seen = _Seen(self.parser.required)
        rows = self.reader.rows(progress, self.parser.fields)
        yield from self._records(rows, 0, seen, tally)
        seen.require(tally)

    def blocks(self, tally: Tally, progress: Progress) -> Iterator[Columns | list[Record]]:
        """The same records in blocks; see `BlockSource.blocks`."""
        reader, parser = self.reader, self.parser
        if not isinstance(reader, BlockRows) or not isinstance(parser, PlainParser):
            yield from batched(self.records(tally, progress))
            return
        seen = _Seen(parser.required)
        order = 0
        for block in reader.blocks(progress, parser.fields):
            parsed = None if block.batch is None else parse_columns(block.batch, parser, order)
            if parsed is None:
                before = tally.records_read
                yield list(self._records(block.rows(), order, seen, tally))
                order += tally.records_read - before
                continue
            assert block.batch is not None
            seen.add_all(len(block.batch))
            tally.read(len(block.batch))
            for reason, count in parsed.drops.items():
                tally.drop(reason, count)
            order += len(block.batch)
            yield parsed.columns
        seen.require(tally)

    def _records(
        self, rows: Iterable[Row | Drop], first: int, seen: _Seen, tally: Tally
    ) -> Iterator[Record]:
        for order, row in enumerate(rows, start=first):
            tally.read()
            if isinstance(row, Drop):
                tally.drop(row)
                continue
            seen.add(row)
            record = self.parser.record(row, order)
            if isinstance(record, Drop):
                tally.drop(record)
            else:
                yield record


class _Seen:
    """Which fields were seen, for the message when none is the right one."""

    def __init__(self, required: tuple[tuple[str, ...], ...]) -> None:
        self._missing = list(required)
        self._names: dict[str, None] = {}
        self._rows = 0

    def add(self, row: Row) -> None:
        self._rows += 1
        if self._missing:
            self._missing = [group for group in self._missing if not any(f in row for f in group)]
        if self._rows <= _FIELDS_SHOWN:
            self._names.update(dict.fromkeys(row))

    def add_all(self, rows: int) -> None:
        """Rows of a block in which every field has a value."""
        self._rows += rows
        self._missing = []

    def require(self, tally: Tally) -> None:
        if tally.records_read and not self._rows:
            raise UseError(
                f"none of {tally.records_read} lines is a JSON object",
                hint="expected one object per line; a JSON array must be split into lines",
            )
        if self._rows and self._missing:
            wanted = " or ".join(repr(name) for name in self._missing[0])
            raise UseError(
                f"no record has the field {wanted}; fields there: {self._shown()}",
                hint="name the right ones with --user-field and --text-field",
            )

    def _shown(self) -> str:
        names = list(self._names)
        more = ", …" if len(names) > _FIELDS_SHOWN else ""
        return ", ".join(repr(str(name)[:40]) for name in names[:_FIELDS_SHOWN]) + more or "none"
