"""Tables as sources: what reads rows, and the one path from a row to a record or a drop.

``FILE.provenance.json`` beside a file of text says what a model descends from that wrote it
(``userdp generate``), or what it was filtered against (`userdp.data.overlap`). A generated record
names the model that wrote it, too (`GENERATED`), so that text which was mixed with other text, or
brought into another format, and whose provenance was lost, is still noticed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any

from userdp.core.codec import decode
from userdp.core.errors import UseError
from userdp.core.files import read_json
from userdp.data.progress import NoProgress, Progress
from userdp.data.records import Drop, Tally
from userdp.data.sources import csv, jsonl, parquet
from userdp.data.sources.base import (
    At,
    Entry,
    FileSource,
    Source,
    SourceOptions,
    expand,
    is_named,
)
from userdp.data.sources.rows import GENERATED, Parser, Row, plain_parser, told

FORMS: Mapping[str, ModuleType] = {"jsonl": jsonl, "csv": csv, "parquet": parquet}
"""The kinds of file that hold rows: each module has ``WHAT``, ``SUFFIXES`` and ``rows``."""
_ROWS_LOOKED_AT = 100
PROVENANCE = ".provenance.json"
"""How the name of a file ends that says where the text beside it is from."""
WRITERS = "text_written_by"
"""The fact of a source: the models whose lineage its files' provenance tells."""
_NO_ROWS = (Drop.BLANK_LINE, Drop.INVALID_JSON, Drop.NOT_AN_OBJECT)


@dataclass(frozen=True, kw_only=True)
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

    def rows(self, progress: Progress) -> Iterator[Row | Drop]:
        """Each row as field to value, or why it is none."""
        raise NotImplementedError

    def first_fields(self) -> Iterator[Collection[str]]:
        """The names of the fields of the first rows."""
        first = islice(self.rows(NoProgress()), _ROWS_LOOKED_AT)
        return (row.keys() for row in first if not isinstance(row, Drop))

    def entries(self, progress: Progress) -> Iterator[Entry]:
        """The records of all rows; see `Source.entries`."""
        parse = self.parser.parse
        for row in self.rows(progress):
            entry = row if isinstance(row, Drop) else parse(row)
            if not isinstance(row, Drop) and (model := row.get(GENERATED)):
                model = model.decode() if isinstance(model, bytes) else str(model)
                entry = entry if isinstance(entry, Drop) else entry._replace(written_by=model)
            yield entry

    def check(self, tally: Tally) -> None:
        """`UseError` if no row came of what was read, or none had a field that is required."""
        drops = tally.drops
        rows = tally.records_read - sum(drops[one] for one in _NO_ROWS)
        if tally.records_read and not rows:
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


@dataclass(frozen=True, kw_only=True)
class FileTable(TableSource, FileSource):
    """Tables in files, one after another; all rows are read by the same parser.

    Args:
        paths: of the files.
        options: see there.
        form: how the rows of each file are read: of `FORMS`; None: by each file's name.
    """

    paths: tuple[Path, ...]
    options: SourceOptions
    form: str | None = None

    def facts(self) -> dict[str, Any]:
        """The fields, the number of files and bytes, and what is said of where the text is from."""
        origin = provenance(self.paths)
        return {"fields": list(self.parser.fields), **FileSource.facts(self), **origin}

    def each(self) -> Iterator[FileTable]:
        """Each file by itself, which another process may read."""
        return (replace(self, paths=(path,)) for path in self.paths)

    def first_fields(self) -> Iterator[Collection[str]]:
        """The columns of the first file, or the fields of its first rows."""
        first = replace(self, paths=self.paths[:1])
        names = None
        if (self.form or _form_of(self.paths[0])) == "parquet":
            names = parquet.names(self.paths[0])
        return TableSource.first_fields(first) if names is None else iter([names])

    def rows(self, progress: Progress) -> Iterator[Row | Drop]:
        """The rows of all files; see `TableSource.rows`."""

        def read(path: Path, at: At) -> Iterator[Row | Drop]:
            form = FORMS[self.form or _form_of(path)]
            rows: Iterator[Row | Drop] = form.rows(path, self.parser.fields, self.options, at)
            return rows

        return self.each_file(read, progress)

    def signature(self) -> str:
        """See `Source.signature`."""
        facts = [(path.absolute(), path.stat()) for path in self.paths]
        files = [(str(path), s.st_size, s.st_mtime_ns, s.st_ino) for path, s in facts]
        return repr((replace(self, paths=()), files))


def open_tables(
    paths: Sequence[str],
    options: SourceOptions,
    *,
    form: str | None = None,
    more: tuple[str, ...] = (),
) -> FileTable:
    """The source for files, folders and patterns ``paths``.

    Args:
        paths: see `expand`.
        options: see there.
        form: of all files; None: each by its name, and JSON Lines where that says nothing.
        more: suffixes of further files of a folder that are read.
    """
    read = list(FORMS.values()) if form is None else [FORMS[form]]
    suffixes = (*(suffix for one in read for suffix in one.SUFFIXES), *more)
    files = expand(paths, suffixes=suffixes, what=" or ".join(one.WHAT for one in read))
    kinds = sorted({form or _form_of(path) for path in files})
    return FileTable(
        kind="+".join(kinds),
        paths=files,
        form=form,
        options=options,
        parser=plain_parser(options),
        several_owners=kinds != ["csv"],  # whose cells hold no lists
    )


def _form_of(path: Path) -> str:
    return next((name for name, form in FORMS.items() if is_named(path, form.SUFFIXES)), "jsonl")


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
            for field, hint in ((GENERATED, str), ("lineage", dict[str, Any])):
                if field in said:
                    decode(hint, said[field], what=f"{field} in {beside}")
            return said
    return {}
