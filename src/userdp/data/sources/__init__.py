"""The kinds of source, in one table: a new one is one file here, and one line of `KINDS`."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from userdp.data.sources import csv, folder, parquet
from userdp.data.sources.base import (
    InputOptions,
    Source,
    SourceOptions,
    files_in,
    holds,
    matching,
)
from userdp.data.sources.conversations import as_conversations, is_conversation
from userdp.data.sources.table import FORMS, PROVENANCE, FileTable, open_tables
from userdp.data.splits import SplitRule
from userdp.errors import UseError, kind_of, warn
from userdp.hints import one_of

_FILES_LOOKED_AT = 32
_FIELD = "the field '{field}'"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of source.

    Args:
        module: with a dot before it, of this folder.
        build: the name of its function of ``(paths, options)`` that gives the source.
        user_is: what names the user of a record, in words; ``{field}`` is the field of a table.
        told_by: the name of the module's function that says whether a path looks like this kind;
            or the suffixes of its files; nothing: the operator has to name the kind.
        split: the papers' own.
    """

    module: str
    build: str = "build"
    user_is: str = _FIELD
    told_by: str | tuple[str, ...] = ()
    split: SplitRule = SplitRule.HASH

    def open(self, paths: list[str], options: SourceOptions) -> Source:
        """The source for ``paths``; `UseError` if they or the options cannot be used."""
        source: Source = self._function(self.build)(paths, options)
        return source

    def matches(self, path: Path) -> bool:
        """Whether an existing ``path`` looks like this kind; cheap, never raises."""
        if isinstance(self.told_by, tuple):
            return holds(path, self.told_by)
        return bool(self._function(self.told_by)(path))

    def _function(self, name: str) -> Any:
        return getattr(import_module(self.module, __name__), name)


_SENDER = "the address of a message's sender"
_DOMAIN = "the registered domain of the field '{field}'"

KINDS = {
    "mbox": Kind(module=".mail", build="build_mbox", user_is=_SENDER, told_by="is_mbox"),
    "maildir": Kind(module=".mail", build="build_maildir", user_is=_SENDER, told_by="is_maildir"),
    "git": Kind(module=".git", user_is="the address of a commit's author", told_by="matches"),
    "hf": Kind(module=".memory", told_by="is_saved"),
    "stackoverflow": Kind(
        module=".stackoverflow",
        user_is="the client that TensorFlow Federated's file names",
        told_by="matches",
        split=SplitRule.GIVEN,
    ),
    "parquet": Kind(module=".table", build="build_parquet", told_by=parquet.SUFFIXES),
    "csv": Kind(module=".table", build="build_csv", told_by=csv.SUFFIXES),
    "c4": Kind(
        module=".web",
        build="build_c4",
        user_is=_DOMAIN,
        told_by="is_c4",
        split=SplitRule.FIRST_PART,
    ),
    "leaf": Kind(module=".leaf", user_is="the user that LEAF's files name", told_by="matches"),
    "jsonl": Kind(module=".table", build="build_jsonl", told_by="is_jsonl"),
    "folder": Kind(
        module=".folder",
        user_is="the file: each document is a user of its own",
        told_by=folder.SUFFIXES,
    ),
    "zip": Kind(module=".archive", user_is="the topmost folder", told_by=(".zip",)),
    "ccnews": Kind(
        module=".web", build="build_ccnews", user_is=_DOMAIN, split=SplitRule.FIRST_PART
    ),
    "conversations": Kind(module=".conversations"),
    "docstrings": Kind(module=".docstrings", user_is="the module that holds a docstring"),
}
"""In the order in which a kind is inferred."""

__all__ = ["KINDS", "InputOptions", "Kind", "Source", "SourceOptions", "open_source", "user_is"]


def user_is(kind: str, fields: list[str]) -> str | None:
    """What names the users of a source, in words; None where a table does not tell its fields."""
    words = KINDS[kind].user_is if kind in KINDS else _FIELD
    if fields:
        return words.format(field=fields[0])
    return None if "{field}" in words else words


def open_source(
    paths: list[str], *, kind: str | None = None, options: SourceOptions | None = None
) -> Source:
    """The source of ``kind`` for ``paths``; the kind is inferred from the paths if None.

    Args:
        paths: files, folders and patterns; and addresses that `fsspec` knows (``s3://…``,
            ``gs://…``, ``hdfs://…``, ``zip://*.csv::dump.zip``) and pipes, which are copied into a
            folder of this process first.
        kind: of `KINDS`.
        options: see there.

    Raises:
        UseError: no such kind, none can be inferred, or the paths cannot be used.
    """
    if kind is not None and kind not in KINDS:
        raise UseError(f"no source is named {kind!r}", hint=one_of(kind, KINDS))
    options = options or SourceOptions()
    here = [local for path in paths for local in _local(path)]
    source = _recognised(here, options) if kind is None else KINDS[kind].open(here, options)
    if options.max_users is not None and not source.public:
        raise UseError(
            "max_users is for public sources alone: which users are kept would depend on who "
            "the others are",
            hint="leave --max-users out, or cut the file down by a rule on the user's own id",
        )
    _tell_of_others(here, source)
    return source


def _local(path: str) -> list[str]:
    """A path as it is; of an address or a pipe, copies in a folder for this process only."""
    is_pipe = Path(path).is_fifo()
    if "://" not in path and not is_pipe:
        return [path]
    folder = tempfile.mkdtemp(prefix="userdp-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if is_pipe:  # files are read twice: to tell their fields, and their records
        copy = Path(folder) / Path(path).name
        with Path(path).open("rb") as pipe, copy.open("wb") as file:
            shutil.copyfileobj(pipe, file)
        return [str(copy)]
    import fsspec

    options = {"cache_storage": folder, "same_names": True}
    try:
        found = fsspec.open_local(f"simplecache::{path}", simplecache=options)
    except (OSError, ValueError, ImportError) as error:
        raise UseError(f"{path} cannot be read: {kind_of(error)}") from error
    return [found] if isinstance(found, str) else list(found)


def _recognised(paths: list[str], options: SourceOptions) -> Source:
    """The source of paths whose kind nobody said."""
    if not paths:
        raise UseError("no input: neither a PATH nor a --source is given", hint="name a file")
    names = [path for name in paths for path in _existing(name)]
    told = {name: [k for k in KINDS if KINDS[k].matches(Path(name))] for name in names}
    shared = next((kind for kind in KINDS if all(kind in own for own in told.values())), None)
    if shared is not None and shared not in FORMS:
        return KINDS[shared].open(paths, options)
    if all(any(kind in FORMS for kind in own) for own in told.values()):
        return _or_conversations(open_tables(paths, options), options)
    if all(told.values()):
        each = "; ".join(f"{name}: {own[0]}" for name, own in told.items())
        raise UseError(
            f"files of these kinds are not read together ({each}): only tables are, which are "
            f"{', '.join(FORMS)}",
            hint="prepare one kind, then add each other with --append",
        )
    raise UseError(
        f"the kind of {', '.join(paths)} cannot be told from its name",
        hint=f"give --source, one of: {', '.join(KINDS)}",
    )


def _existing(name: str) -> list[str]:
    paths = [name] if Path(name).exists() else matching(name)
    if not paths:
        raise UseError(
            f"no input at {name}: nothing is there",
            hint="for installed packages give --source docstrings, for the hub --source hf",
        )
    return paths


def _or_conversations(table: FileTable, options: SourceOptions) -> FileTable:
    """The table, read as conversations where its first records are such.

    What is told is the *form* of the files (suffixes, names of fields), which counts as public, as
    the options of the command do. So it must not hang on one person's record: where the first
    records do not agree, nothing is told, and the operator says it.
    """
    files = islice(table.each(), _FILES_LOOKED_AT)
    told = {is_conversation(row, options) for file in files for row in file.first_fields()}
    if {True, False} <= told:
        raise UseError(
            f"some records have the field {options.text!r}, and others are conversations: a store "
            "holds one or the other, since only conversations say what the loss counts",
            hint="prepare them apart: --source conversations drops and counts what has no turns, "
            "--source jsonl (or parquet, or csv) what has no text",
        )
    return as_conversations(table, options) if True in told else table


def _tell_of_others(paths: Iterable[str], source: Source) -> None:
    """Warn of files in a folder that was named which the source does not read."""
    read = {*source.files}
    for place in filter(Path.is_dir, map(Path, paths)) if read else ():
        others = [
            file
            for file in files_in(place)
            if file not in read and not file.name.endswith(PROVENANCE)
        ]
        if others:
            warn(
                f"{len(others)} of the files in {place} are not read: the kind {source.kind} has "
                "other names"
            )
