"""The kinds of source, in one table: a new one is one file here, and one row of `KINDS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from userdp.core.errors import (
    UseError,
    one_of,
)
from userdp.data.sources import (
    docstrings,
    documents,
    git,
    mail,
    memory,
    paper_datasets,
)
from userdp.data.sources.conversations import as_conversations, or_conversations
from userdp.data.sources.input_files import existing, expand, files_facts, holds, local_paths
from userdp.data.sources.rows_to_records import first_held_out
from userdp.data.sources.source import At, Entry, InputOptions, Source, SourceOptions
from userdp.data.sources.tables import FORMS, is_jsonl, open_tables
from userdp.data.splits import SplitRule

_FIELD = "the field '{field}'"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of source: of files that ``read`` reads one by one, or of what ``open`` opens.

    Args:
        user_is: what names the user of a record, in words; ``{field}`` is the field of a table.
        suffixes: of its files in a folder.
        recognises: whether an existing path looks like this kind (cheap, never raises); None: by
            its suffixes. A kind without either has to be named by the operator.
        read: the entries of one file; it may report how many of its bytes are read.
        files: the files that paths stand for; None: all of these ``suffixes``.
        several_owners: see `Source`.
        open: gives the source of some paths; `UseError` if they or the options cannot be used.
        split: the papers' own.
    """

    user_is: str = _FIELD
    suffixes: tuple[str, ...] = ()
    recognises: Callable[[Path], bool] | None = None
    read: Callable[[Path, SourceOptions, At], Iterator[Entry]] | None = None
    files: Callable[[list[str]], tuple[Path, ...]] | None = None
    several_owners: bool = False
    open: Callable[[list[str], SourceOptions], Source] | None = None
    split: SplitRule = SplitRule.HASH

    def matches(self, path: Path) -> bool:
        """Whether an existing ``path`` looks like this kind."""
        return holds(path, self.suffixes) if self.recognises is None else self.recognises(path)

    def source(self, name: str, paths: list[str], options: SourceOptions) -> Source:
        """The source for ``paths``; ``name`` is the kind's own.

        Raises:
            UseError: the paths or the options cannot be used.
        """
        if (options.user, options.text) != ("user", "text") and "{field}" not in self.user_is:
            raise UseError(
                f"--user and --text name fields, and {name} has none: {self.user_is}",
                hint="leave them out; or name files of records, where a folder holds both",
            )
        if self.open is not None:
            return self.open(paths, options)
        read = self.read
        assert read is not None, f"the kind {name} has neither `read` nor `open`"
        files = (self.files or partial(expand, suffixes=self.suffixes, what=name))(paths)
        return Source(
            kind=name,
            places=files,
            read=lambda path, at: read(path, options, at),
            several_owners=self.several_owners,
            facts=files_facts(files),
        )


_MAIL = partial(Kind, user_is="the address of a message's sender", several_owners=True)
_WEB = partial(
    Kind, user_is="the registered domain of the field '{field}'", split=SplitRule.FIRST_PART
)

KINDS = {
    "mbox": _MAIL(read=mail.read_mbox, suffixes=mail.SUFFIXES, recognises=mail.is_mbox),
    "maildir": _MAIL(read=mail.read_message, files=mail.message_files, recognises=mail.is_maildir),
    "git": Kind(
        open=git.open_history,
        recognises=git.is_repository,
        user_is="the address of a commit's author",
    ),
    "hf": Kind(open=memory.open_hub, recognises=memory.is_saved),
    "stackoverflow": Kind(
        read=paper_datasets.read_stackoverflow,
        suffixes=(".sqlite",),
        recognises=paper_datasets.is_sqlite,
        user_is="the client that TensorFlow Federated's file names",
        split=SplitRule.GIVEN,
    ),
    "parquet": Kind(open=partial(open_tables, form="parquet"), suffixes=FORMS["parquet"].suffixes),
    "csv": Kind(open=partial(open_tables, form="csv"), suffixes=FORMS["csv"].suffixes),
    "c4": _WEB(open=partial(paper_datasets.open_web, kind="c4"), recognises=paper_datasets.is_c4),
    "leaf": Kind(
        read=paper_datasets.read_leaf,
        files=paper_datasets.leaf_files,
        recognises=paper_datasets.is_leaf,
        user_is="the user that LEAF's files name",
    ),
    "jsonl": Kind(open=partial(open_tables, form="jsonl"), recognises=is_jsonl),
    "folder": Kind(
        open=documents.open_folder,
        suffixes=documents.SUFFIXES,
        user_is="the file: each document is a user of its own",
    ),
    "zip": Kind(read=documents.read_archive, suffixes=(".zip",), user_is="the topmost folder"),
    "ccnews": _WEB(open=partial(paper_datasets.open_web, kind="ccnews")),
    "conversations": Kind(
        open=lambda paths, options: as_conversations(open_tables(paths, options), options)
    ),
    "docstrings": Kind(open=docstrings.open_packages, user_is="the module that holds a docstring"),
}
"""In the order in which a kind is inferred."""

__all__ = [
    "KINDS", "At", "InputOptions", "Kind", "Source", "SourceOptions", "open_source", "user_is",
]  # fmt: skip


def user_is(kind: str, fields: Sequence[str]) -> str | None:
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
    if not paths and kind != "docstrings":
        raise UseError("no input: no PATH is given", hint="name one or more files or folders")
    options = options or SourceOptions()
    first_held_out(options)  # refused at once if it is no date
    here = [local for path in paths for local in local_paths(path)]
    source = KINDS[kind].source(kind, here, options) if kind else _recognised(here, options)
    if source.kind in ("folder", "leaf") and any("://" in path for path in paths):
        raise UseError(
            f"{source.kind} tells users or splits by folders, which a copy of an address has not",
            hint="copy the folder to this machine first",
        )
    return source


def _recognised(paths: list[str], options: SourceOptions) -> Source:
    """The source for paths whose kind was not given."""
    kind_of: dict[Path, str] = {}
    for file in (file for path in paths for file in existing(path)):
        kind = next((name for name, kind in KINDS.items() if kind.matches(file)), None)
        if kind is None:
            raise UseError(
                f"the kind of {file} cannot be told from its name",
                hint=f"give --source, one of: {', '.join(KINDS)}",
            )
        kind_of[file] = kind
    kinds = set(kind_of.values())
    if kinds <= FORMS.keys():
        table = open_tables(paths, options)
        return or_conversations(table, options, table.first_fields())
    if len(kinds) > 1:
        each = "; ".join(f"{file}: {kind}" for file, kind in kind_of.items())
        raise UseError(
            f"files of these kinds are not read together ({each}): only tables are, which are "
            f"{', '.join(FORMS)}",
            hint="prepare one kind, then add each other with --append",
        )
    (kind,) = kinds
    return KINDS[kind].source(kind, paths, options)
