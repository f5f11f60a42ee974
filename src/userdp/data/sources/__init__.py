"""The kinds of source, in one table: a new one is one file here, and one line of `KINDS`."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from userdp.data.sources.base import (
    InputOptions,
    Source,
    SourceOptions,
    files_in,
    holds,
    matching,
)
from userdp.data.sources.conversations import as_conversations, is_conversation
from userdp.data.sources.table import PROVENANCE, FileTable, Several
from userdp.data.splits import SplitRule
from userdp.errors import UseError, kind_of, warn
from userdp.hints import one_of

_FILES_LOOKED_AT = 32
_FIELD = "the field '{field}'"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of source.

    Args:
        module: with a dot before it, of this folder; it has ``build(paths, options)``.
        user_is: what names the user of a record, in words; ``{field}`` is the field of a table.
        told_by: the name of the module's function that says whether a path looks like this kind;
            or the suffixes of its files; nothing: the operator has to name the kind.
        deep: also folders within folders are looked into.
        table: files of these kinds may be mixed.
        split: the papers' own.
    """

    module: str
    user_is: str = _FIELD
    told_by: str | tuple[str, ...] = ()
    deep: bool = False
    table: bool = False
    split: SplitRule = SplitRule.HASH

    def build(self, paths: list[str], options: SourceOptions, **more: Any) -> Source:
        """The source for ``paths``; `UseError` if they or the options cannot be used."""
        source: Source = self._function("build")(paths, options, **more)
        return source

    def matches(self, path: Path) -> bool:
        """Whether an existing ``path`` looks like this kind; cheap, never raises."""
        if isinstance(self.told_by, tuple):
            return holds(path, self.told_by, deep=self.deep)
        return bool(self._function(self.told_by)(path))

    def _function(self, name: str) -> Any:
        return getattr(import_module(self.module, __name__), name)


_SENDER = "the address of a message's sender"
_DOMAIN = "the registered domain of the field '{field}'"

KINDS = {
    "mbox": Kind(module=".mail", user_is=_SENDER, told_by="is_mbox"),
    "maildir": Kind(module=".mail", user_is=_SENDER, told_by="is_maildir"),
    "git": Kind(module=".git", user_is="the address of a commit's author", told_by="matches"),
    "hf": Kind(module=".memory", told_by="is_saved"),
    "stackoverflow": Kind(
        module=".stackoverflow",
        user_is="the client that TensorFlow Federated's file names",
        told_by="matches",
        split=SplitRule.GIVEN,
    ),
    "parquet": Kind(module=".parquet", told_by=(".parquet", ".pq"), deep=True, table=True),
    "csv": Kind(module=".csv", told_by=(".csv", ".csv.gz", ".tsv", ".tsv.gz"), table=True),
    "c4": Kind(module=".web", user_is=_DOMAIN, told_by="is_c4", split=SplitRule.FIRST_PART),
    "leaf": Kind(module=".leaf", user_is="the user that LEAF's files name", told_by="matches"),
    "jsonl": Kind(module=".jsonl", told_by="matches", table=True),
    "folder": Kind(
        module=".folder",
        user_is="the file: each document is a user of its own",
        told_by=(".txt", ".text", ".md", ".rst", ".tex", ".org"),
        deep=True,
    ),
    "ccnews": Kind(module=".web", user_is=_DOMAIN, split=SplitRule.FIRST_PART),
    "conversations": Kind(module=".conversations"),
    "docstrings": Kind(module=".docstrings", user_is="the module that holds a docstring"),
}
"""In the order in which a kind is inferred."""

_OF_A_MODULE_OF_SEVERAL = ("mbox", "maildir", "c4", "ccnews")

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
    source = _recognised(here, options) if kind is None else _build(kind, here, options)
    if options.max_users is not None and not source.public:
        raise UseError(
            "max_users is for public sources alone: which users are kept would depend on who "
            "the others are",
            hint="leave --max-users out, or cut the file down by a rule on the user's own id",
        )
    _tell_of_others(here, source)
    return source


def _build(kind: str, paths: list[str], options: SourceOptions) -> Source:
    more = {"kind": kind} if kind in _OF_A_MODULE_OF_SEVERAL else {}
    return KINDS[kind].build(paths, options, **more)


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
    shared = [kind for kind in KINDS if all(kind in own for own in told.values())]
    if shared and not KINDS[shared[0]].table:
        return _build(shared[0], paths, options)
    if parts := _parts(told):
        return _tables(parts, options)
    if all(told.values()):
        each = "; ".join(f"{name}: {own[0]}" for name, own in told.items())
        tables = ", ".join(kind for kind in KINDS if KINDS[kind].table)
        raise UseError(
            f"files of these kinds are not read together ({each}): only tables are, which are "
            f"{tables}",
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


def _parts(told: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    """Each kind of table with its paths, in their order; nothing where a path is no table.

    A folder that holds files of several kinds stands once for each.
    """
    kinds: list[tuple[str, str]] = []
    for name, every in told.items():
        own = [kind for kind in every if KINDS[kind].table]
        if not own:
            return []
        kinds += [(kind, name) for kind in (own if Path(name).is_dir() else own[:1])]
    runs = groupby(kinds, key=lambda part: part[0])
    return [(kind, [name for _, name in run]) for kind, run in runs]


def _tables(parts: list[tuple[str, list[str]]], options: SourceOptions) -> Source:
    """The tables of ``parts``, as conversations where their first records are such.

    What is told is the *form* of the files (suffixes, names of fields), which counts as public, as
    the options of the command do. So it must not hang on one person's record: where the first
    records do not agree, nothing is told, and the operator says it.
    """
    tables = [one for k, names in parts if isinstance(one := _build(k, names, options), FileTable)]
    files = islice((file for table in tables for file in table.each()), _FILES_LOOKED_AT)
    told = {is_conversation(row, options) for file in files for row in file.first_fields()}
    if {True, False} <= told:
        raise UseError(
            f"some records have the field {options.text!r}, and others are conversations: a store "
            "holds one or the other, since only conversations say what the loss counts",
            hint="prepare them apart: --source conversations drops and counts what has no turns, "
            "--source jsonl (or parquet, or csv) what has no text",
        )
    if True in told:
        tables = [as_conversations(table, options) for table in tables]
    return tables[0] if len(tables) == 1 else Several.of(tables)


def _tell_of_others(paths: Iterable[str], source: Source) -> None:
    """Warn of files in a folder that was named which the source does not read."""
    read = {*source.files}
    if not read:
        return
    for folder in filter(Path.is_dir, map(Path, paths)):
        others = [
            file
            for file in files_in(folder, deep=True)
            if file not in read and not file.name.endswith(PROVENANCE)
        ]
        if others:
            warn(
                f"{len(others)} of the files in {folder} are not read: the kind {source.kind} "
                "has other names, or does not look into folders within folders"
            )
