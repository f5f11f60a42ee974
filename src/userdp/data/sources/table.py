"""Tables as sources: what reads rows, and the one path from a row to a record or a drop.

``FILE.provenance.json`` beside a file of text says what a model descends from that wrote it
(``userdp generate``), or what it was filtered against (`userdp.data.overlap`). A generated record
names the model that wrote it, too (`GENERATED`), so that text which was mixed with other text, or
brought into another format, and whose provenance was lost, is still noticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, Self

from userdp.codec import decode
from userdp.data.progress import NoProgress, Note, Progress
from userdp.data.records import Drop, Record, Tally
from userdp.data.sources.base import FileSource, Source
from userdp.data.sources.rows import Parser, PlainParser, Row
from userdp.errors import UseError
from userdp.files import read_json

_ROWS_LOOKED_AT = 100
PROVENANCE = ".provenance.json"
"""How the name of a file ends that says where the text beside it is from."""
GENERATED = "generated_by"
"""The field of a generated record that names the model that wrote it."""
WRITERS = "text_written_by"
"""The fact of a source: the models whose lineage its files' provenance tells."""
_NO_ROWS = (Drop.BLANK_LINE, Drop.INVALID_JSON, Drop.NOT_AN_OBJECT)


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSource(Source):
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

    def first_fields(self) -> Iterator[Collection[str]]:
        """The names of the fields of the first rows."""
        block = next(self.rows(NoProgress()), [])
        return (row.keys() for row in block[:_ROWS_LOOKED_AT] if not isinstance(row, Drop))

    def records(self, tally: Tally, progress: Progress) -> Iterator[Record]:
        """The records of all rows; see `Source.records`."""
        read, drops = tally.records_read, tally.drops.copy()
        yield from self.part(tally, progress)
        self.require_fields(tally.records_read - read, tally.drops - drops)

    def part(self, tally: Tally, progress: Progress) -> Iterator[Record]:
        """What `records` gives, for a table that may be a part of one."""
        parse = self.parser.parse
        for rows in self.rows(progress):
            first = tally.records_read
            tally.read(len(rows))
            for order, row in enumerate(rows, first):
                if isinstance(row, Drop):
                    tally.drop(row)
                    continue
                if model := row.get(GENERATED):
                    tally.wrote(model.decode() if isinstance(model, bytes) else str(model))
                record = parse(row, order)
                if isinstance(record, Drop):
                    tally.drop(record)
                else:
                    yield record

    def require_fields(self, read: int, drops: Counter[str]) -> None:
        """`UseError` if no row came of what there was, or none had a field that is required.

        Args:
            read: records that were read of this table.
            drops: those of them that were dropped, by reason.
        """
        rows = read - sum(drops[one] for one in _NO_ROWS)
        if read and not rows:
            raise UseError(
                "no line is a JSON object",
                hint="expected one object per line; a JSON array must be split into lines",
            )
        lacking = drops[Drop.NO_USER_FIELD] + drops[Drop.NO_TEXT_FIELD]
        if not rows or lacking < rows:
            return
        seen = dict.fromkeys(chain.from_iterable(self.first_fields()))
        for group in self.parser.required:
            if seen.keys().isdisjoint(group):
                wanted = " or ".join(repr(name) for name in group)
                raise UseError(
                    f"no record has the field {wanted}; fields there: {told(seen, group)}",
                    hint="name the right ones with --user and --text",
                )


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

    def signature(self) -> str | None:
        """See `Source.signature`."""
        if not isinstance(self.parser, PlainParser) or self.parser.user_of is not None:
            return None  # a function or a template, which no text names
        facts = [(path.absolute(), path.stat()) for path in self.paths]
        files = [(str(path), s.st_size, s.st_mtime_ns, s.st_ino) for path, s in facts]
        return repr((replace(self, paths=()), files))


@dataclass(frozen=True, kw_only=True, slots=True)
class Several(Source):
    """Tables of files of mixed kinds, one after another; all rows are read by the same parser.

    Args:
        parts: at least one; of equal `FileTable.loss_mask`.
        kind: the kinds that there are, as "csv+jsonl".
        several_owners: whether a record of any part may name several.
        loss_mask: whether they are conversations.
    """

    parts: tuple[FileTable, ...]
    kind: str
    several_owners: bool
    loss_mask: bool

    @classmethod
    def of(cls, parts: Sequence[FileTable]) -> Self:
        """These tables as one."""
        return cls(
            parts=tuple(parts),
            kind="+".join(sorted({part.kind for part in parts})),
            several_owners=any(part.several_owners for part in parts),
            loss_mask=parts[0].loss_mask,
        )

    @property
    def size(self) -> int:
        """Bytes of all files, as they lie on disk."""
        return sum(part.size for part in self.parts)

    @property
    def files(self) -> list[Path]:
        """Those of all parts."""
        return [file for part in self.parts for file in part.files]

    def records(self, tally: Tally, progress: Progress) -> Iterator[Record]:
        """The records of all parts; see `Source.records`."""
        before = 0
        for part in self.parts:
            yield from part.records(tally, _After(progress, before))
            before += part.size

    def facts(self) -> dict[str, Any]:
        """Those of all parts: the fields, the number of files and bytes, and where text is from.

        Guarantee: what any part says of its text's provenance is said of the whole.
        """
        merged: dict[str, Any] = {}
        for name, value in chain.from_iterable(part.facts().items() for part in self.parts):
            so_far = merged.get(name)
            if isinstance(value, list):
                merged[name] = [*(so_far or ()), *(x for x in value if x not in (so_far or ()))]
            else:  # the numbers of files and bytes
                merged[name] = value + (so_far or 0)
        return merged

    def signature(self) -> str | None:
        """Those of all parts; see `Source.signature`."""
        each = [part.signature() for part in self.parts]
        return None if None in each else repr(each)


class _After(NoProgress):
    """Progress of one part, told as that of the whole."""

    def __init__(self, progress: Progress, before: int) -> None:
        self._progress, self._before = progress, before

    def stage(
        self, name: str, total: int | None, *, unit: str = "", note: Note | None = None
    ) -> None:
        """Begin the stage."""
        self._progress.stage(name, total, unit=unit, note=note)

    def at(self, done: int) -> None:
        """The whole stands further."""
        self._progress.at(self._before + done)


def told(names: Iterable[str], wanted: Collection[str]) -> str:
    """Names of fields, for a message: those that look like one, or resemble what was asked for.

    A table without a header has somebody's record in its place, which no message quotes.

    >>> told(["user", "body", "Dear Ann"], ["text"])
    "'user', 'body', and others that do not look like names"
    """
    known = [str(name) for name in names]
    near = {one for word in wanted for one in get_close_matches(word, known, cutoff=0.8)}
    shown = [name for name in known if name.isidentifier() or name in near]
    words = [repr(name) for name in shown]
    if len(words) < len(known):
        others = "and others that do not look like names"
        words.append(others if words else "none that looks like one")
    return ", ".join(words) or "none"


def provenance(paths: Iterable[Path]) -> dict[str, Any]:
    """What is said beside files of text, or folders that stand for one, as facts of a source."""
    told = [_said_beside(path) for path in paths]
    facts = {
        "filtered_against_private": [one for one in told if "private_data" in one],
        "text_lineage": [one["lineage"] for one in told if "lineage" in one],
        WRITERS: [one[GENERATED] for one in told if GENERATED in one],
    }
    return {name: value for name, value in facts.items() if value}


def with_lost(facts: dict[str, Any], written_by: Iterable[str]) -> dict[str, Any]:
    """Facts of a source, and whether a model wrote some of its records of which nothing is told."""
    told = {name: value for name, value in facts.items() if name != WRITERS}
    lost = set(written_by) - set(facts.get(WRITERS, ()))
    return {**told, "text_of_unknown_model": True} if lost else told


def _said_beside(path: Path) -> dict[str, Any]:
    """What lies beside a file, also if that was packed or unpacked since."""
    for name in (path.name, f"{path.name}.gz", path.name.removesuffix(".gz")):
        beside = path.with_name(f"{name}{PROVENANCE}")
        if beside.is_file():
            said = read_json(beside, what="what is said of a text")
            hints: dict[str, Any] = {GENERATED: str, "lineage": dict[str, Any]}
            for field, hint in hints.items():
                if field in said:
                    decode(hint, said[field], what=f"{field} in {beside}")
            return said
    return {}
