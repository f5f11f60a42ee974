"""Tables that are told from their files: of mixed kinds, and conversations or plain text.

What is told is the *form* of the files (suffixes, names of fields), which counts as public, as the
options of the command do. So it must not hang on one person's record: where the first records do
not agree, nothing is told, and the operator says it.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from itertools import groupby, islice
from pathlib import Path
from typing import cast

from userdp.data.sources.base import Source, SourceModule, SourceOptions
from userdp.data.sources.conversations import as_conversations, is_conversation
from userdp.data.sources.table import FileTable, Several
from userdp.errors import UseError

TABLES = ("parquet", "csv", "jsonl")
"""Kinds that may be mixed, in the order in which a file's own is told."""
_FILES_LOOKED_AT = 32


def parts_of(paths: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Each kind of table with its paths, in their order; empty where a path is no table.

    A folder that holds files of several kinds stands once for each.
    """
    kinds: list[tuple[str, str]] = []
    for name in paths:
        path = Path(name)
        own = [kind for kind in TABLES if _module(kind).matches(path)]
        if not own:
            return []
        kinds += [(kind, name) for kind in (own if path.is_dir() else own[:1])]
    runs = groupby(kinds, key=lambda part: part[0])
    return [(kind, [name for _, name in run]) for kind, run in runs]


def open_tables(parts: list[tuple[str, list[str]]], options: SourceOptions) -> Source:
    """The tables of ``parts``, as conversations where their first records are such.

    Raises:
        UseError: some of the first records have a text, and others are conversations.
    """
    tables = [cast("FileTable", _module(kind).build(names, options)) for kind, names in parts]
    if _are_conversations(tables, options):
        tables = [as_conversations(table, options) for table in tables]
    return tables[0] if len(tables) == 1 else Several(parts=tuple(tables))


def _are_conversations(tables: list[FileTable], options: SourceOptions) -> bool:
    files = islice((file for table in tables for file in table.each()), _FILES_LOOKED_AT)
    told = {is_conversation(row, options) for file in files for row in file.first_fields()}
    if {True, False} <= told:
        raise UseError(
            f"some records have the field {options.text!r}, and others are conversations: a store "
            "holds one or the other, since only conversations say what the loss counts",
            hint="prepare them apart: --source conversations drops and counts what has no turns, "
            "--source jsonl (or parquet, or csv) what has no text",
        )
    return True in told


def _module(kind: str) -> SourceModule:
    return cast("SourceModule", import_module(f"userdp.data.sources.{kind}"))
