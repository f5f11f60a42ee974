"""The kinds of source. A new one is one file here, with `build` and `matches`, and one line."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import cast

from userdp.data.sources.base import InputOptions, Source, SourceModule, SourceOptions
from userdp.data.sources.paths import matching
from userdp.data.sources.recognised import TABLES, open_tables, parts_of
from userdp.errors import UseError
from userdp.hints import one_of

KINDS = {
    "mbox": "userdp.data.sources.mbox",
    "maildir": "userdp.data.sources.maildir",
    "git": "userdp.data.sources.git",
    "hf": "userdp.data.sources.hf",
    "stackoverflow": "userdp.data.sources.stackoverflow",
    "parquet": "userdp.data.sources.parquet",
    "csv": "userdp.data.sources.csv",
    "c4": "userdp.data.sources.c4",
    "leaf": "userdp.data.sources.leaf",
    "jsonl": "userdp.data.sources.jsonl",
    "folder": "userdp.data.sources.folder",
    "ccnews": "userdp.data.sources.ccnews",
    "conversations": "userdp.data.sources.conversations",
    "docstrings": "userdp.data.sources.docstrings",
}
"""Kind to module, in the order in which a kind is inferred."""

__all__ = ["KINDS", "InputOptions", "Source", "SourceOptions", "open_source"]


def open_source(
    paths: list[str], *, kind: str | None = None, options: SourceOptions | None = None
) -> Source:
    """The source of ``kind`` for ``paths``; the kind is inferred from the paths if None.

    Raises:
        UseError: no such kind, none can be inferred, or the paths cannot be used.
    """
    if kind is not None and kind not in KINDS:
        raise UseError(f"no source is named {kind!r}", hint=one_of(kind, KINDS))
    options = options or SourceOptions()
    source = _recognised(paths, options) if kind is None else _module(kind).build(paths, options)
    if options.max_users is not None and not source.public:
        raise UseError(
            "max_users is for public sources alone: which users are kept would depend on who "
            "the others are",
            hint="leave --max-users out, or cut the file down by a rule on the user's own id",
        )
    return source


def _module(kind: str) -> SourceModule:
    return cast(SourceModule, import_module(KINDS[kind]))


def _recognised(paths: list[str], options: SourceOptions) -> Source:
    """The source of paths whose kind nobody said."""
    if not paths:
        raise UseError("no input: neither a PATH nor a --source is given", hint="name a file")
    names = [path for name in paths for path in _expand(name)]
    matching_all = (
        kind for kind in KINDS if all(_module(kind).matches(Path(name)) for name in names)
    )
    kind = next(matching_all, None)
    if kind is not None and kind not in TABLES:
        return _module(kind).build(paths, options)
    if parts := parts_of(names):
        return open_tables(parts, options)
    told = {name: _kind_of(Path(name)) for name in names}
    if len(set(told.values())) > 1 and None not in told.values():
        each = "; ".join(f"{name}: {kind}" for name, kind in told.items())
        raise UseError(
            f"files of these kinds are not read together ({each}): only tables are, which are "
            f"{', '.join(TABLES)}",
            hint="prepare one kind, then add each other with --append",
        )
    raise UseError(
        f"the kind of {', '.join(paths)} cannot be told from its name",
        hint=f"give --source, one of: {', '.join(KINDS)}",
    )


def _kind_of(path: Path) -> str | None:
    return next((kind for kind in KINDS if _module(kind).matches(path)), None)


def _expand(name: str) -> list[str]:
    if Path(name).exists():
        return [name]
    paths = matching(name)
    if not paths:
        raise UseError(
            f"no input at {name}: nothing is there",
            hint="for installed packages give --source docstrings, for the hub --source hf",
        )
    return paths
