"""The kinds of source, in one table: a new one is one file here, and one line of `KINDS`."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from userdp.core.errors import UseError, kind_of, warn
from userdp.core.hints import one_of
from userdp.data.sources import (
    csv,
    docstrings,
    documents,
    git,
    jsonl,
    leaf,
    mail,
    memory,
    parquet,
    stackoverflow,
    web,
)
from userdp.data.sources.base import (
    At,
    DocumentSource,
    Entry,
    InputOptions,
    Source,
    SourceOptions,
    expand,
    files_in,
    holds,
    matching,
)
from userdp.data.sources.conversations import as_conversations, is_conversation
from userdp.data.sources.table import FORMS, PROVENANCE, FileTable, open_tables
from userdp.data.splits import SplitRule

_FILES_LOOKED_AT = 32
_FIELD = "the field '{field}'"
_Open = Callable[[list[str], SourceOptions], Source]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of source.

    Args:
        open: gives the source of some paths; `UseError` if they or the options cannot be used.
        user_is: what names the user of a record, in words; ``{field}`` is the field of a table.
        told_by: whether an existing path looks like this kind (cheap, never raises); or the
            suffixes of its files; nothing: the operator has to name the kind.
        split: the papers' own.
    """

    open: _Open
    user_is: str = _FIELD
    told_by: Callable[[Path], bool] | tuple[str, ...] = ()
    split: SplitRule = SplitRule.HASH

    def matches(self, path: Path) -> bool:
        """Whether an existing ``path`` looks like this kind."""
        if isinstance(self.told_by, tuple):
            return holds(path, self.told_by)
        return self.told_by(path)


def of_files(
    kind: str,
    read: Callable[[Path, SourceOptions, At], Iterator[Entry]],
    *,
    suffixes: tuple[str, ...],
    what: str,
) -> _Open:
    """What opens a kind whose files are read one by one.

    Args:
        kind: its name.
        read: the entries of one file; it may tell how many of its bytes are read.
        suffixes: of its files in a folder.
        what: its files in words, for messages.
    """

    def open_files(paths: list[str], options: SourceOptions) -> Source:
        files = expand(paths, suffixes=suffixes, what=what)
        return DocumentSource(kind=kind, paths=files, options=options, read=read)

    return open_files


_SENDER = "the address of a message's sender"
_DOMAIN = "the registered domain of the field '{field}'"

KINDS = {
    "mbox": Kind(open=partial(mail.open_mail, kind="mbox"), user_is=_SENDER, told_by=mail.is_mbox),
    "maildir": Kind(
        open=partial(mail.open_mail, kind="maildir"), user_is=_SENDER, told_by=mail.is_maildir
    ),
    "git": Kind(
        open=git.open_history, user_is="the address of a commit's author", told_by=git.matches
    ),
    "hf": Kind(open=memory.open_hub, told_by=memory.is_saved),
    "stackoverflow": Kind(
        open=of_files(
            "stackoverflow", stackoverflow.read, suffixes=(".sqlite",), what="SQLite files"
        ),
        user_is="the client that TensorFlow Federated's file names",
        told_by=stackoverflow.matches,
        split=SplitRule.GIVEN,
    ),
    "parquet": Kind(open=partial(open_tables, form="parquet"), told_by=parquet.SUFFIXES),
    "csv": Kind(open=partial(open_tables, form="csv"), told_by=csv.SUFFIXES),
    "c4": Kind(
        open=partial(web.open_web, kind="c4"),
        user_is=_DOMAIN,
        told_by=web.is_c4,
        split=SplitRule.FIRST_PART,
    ),
    "leaf": Kind(
        open=of_files("leaf", leaf.read, suffixes=(".json",), what="LEAF files"),
        user_is="the user that LEAF's files name",
        told_by=leaf.matches,
    ),
    "jsonl": Kind(open=partial(open_tables, form="jsonl"), told_by=jsonl.matches),
    "folder": Kind(
        open=documents.open_folder,
        user_is="the file: each document is a user of its own",
        told_by=documents.SUFFIXES,
    ),
    "zip": Kind(
        open=of_files("zip", documents.read_archive, suffixes=(".zip",), what="ZIP archives"),
        user_is="the topmost folder",
        told_by=(".zip",),
    ),
    "ccnews": Kind(
        open=partial(web.open_web, kind="ccnews"), user_is=_DOMAIN, split=SplitRule.FIRST_PART
    ),
    "conversations": Kind(
        open=lambda paths, options: as_conversations(open_tables(paths, options), options)
    ),
    "docstrings": Kind(open=docstrings.open_packages, user_is="the module that holds a docstring"),
}
"""In the order in which a kind is inferred."""

__all__ = [
    "KINDS", "At", "InputOptions", "Kind", "Source", "SourceOptions", "of_files", "open_source",
    "user_is",
]  # fmt: skip


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
