"""``userdp.prepare``: records to a user store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from userdp.commands.progress import shown
from userdp.commands.source_options import default_split, source_options
from userdp.data.checkpoints import kept_for
from userdp.data.grouping import GroupingEngine
from userdp.data.meta import read_meta
from userdp.data.ownership import Owners
from userdp.data.prepare import append_records, prepare_store
from userdp.data.progress import Progress
from userdp.data.sources import InputOptions, Source, memory, open_source
from userdp.data.sources.base import SourceOptions
from userdp.data.splits import SplitRule
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.errors import UseError, warn
from userdp.interrupts import held, told
from userdp.ledger import StoreLedger
from userdp.ledger.place import Place, linked_anew

REQUIRED = "required"
"""In place of a ledger's path: refuse to prepare a store that shares none."""


def prepare(
    data: Any,
    *,
    out: str | Path,
    user: str = "user",
    text: str = "text",
    source: str | None = None,
    tokenizer: str | Path | None = None,
    seq_len: int = 128,
    held_out_users: float = 0.1,
    held_out_examples: float = 0.05,
    split: str | None = None,
    owners: str = "first",
    records_per_user: int | None = None,
    engine: str = "duckdb",
    memory_limit: str = "1GB",
    append: bool = False,
    overwrite: bool = False,
    ledger: str | Path | None = None,
    progress: Progress | None = None,
    **fields: Any,
) -> UserStore:
    """Turn records into a user store, or add them to one.

    Every record is stored or counted as dropped, with the reason (``store.meta.drops``). The store
    is written whole or not at all. Its counts are for its operator: they are not differentially
    private.

    Args:
        data: a `datasets.Dataset`, a data frame of pandas or polars, rows that are dicts; or the
            paths of files and folders, or patterns, as one or in a list.
        out: the store's folder.
        user: the column or field that names a record's user; a list of users where several own it.
        text: the column or field that holds a record's text.
        source: of paths: jsonl, csv, parquet, hf, mbox, maildir, git, …; told from them by default.
        tokenizer: tokenizer.json or a folder that holds one; by default the bundled model's. It
            must come from public text.
        seq_len: most tokens of an example.
        held_out_users: fraction of users of whom nothing is trained on.
        held_out_examples: fraction of the other users' records that are not trained on.
        split: hash (that fraction), given or first-part; by default hash, or the papers' own.
        owners: first, or greedy (which needs ``records_per_user``).
        records_per_user: the bound of ``owners="greedy"``.
        engine: duckdb, or spark.
        memory_limit: most memory of the grouping stage, for instance 1GB.
        append: add to the store that lies there, which keeps its tokenizer, length and fractions.
        overwrite: replace the store that lies there; its privacy ledger is kept.
        ledger: a privacy ledger that other stores of the same people name too.
        progress: is told how far it is; by default a bar, or lines where stderr is no terminal.
        fields: what concerns only some kinds of source, see `InputOptions`.

    Raises:
        UseError: an argument is out of range, or the records as a whole cannot be used.
        FailureError: the disk refused.
        Interrupted: by Ctrl-C or SIGTERM; the place is as it was.
    """
    place = Path(out)
    if append and overwrite:
        raise UseError("--append and --overwrite exclude each other", hint="give one of them")
    if str(ledger) == REQUIRED:
        raise UseError(
            "this configuration wants a privacy ledger that the stores of these people share",
            hint="name it: --ledger /path/to/ledger.jsonl",
        )
    shared = None if ledger is None else Path(ledger)
    if shared is not None:
        Place.require_shareable(place, shared)
    words = None if tokenizer is None else Path(tokenizer)
    given = InputOptions(user=user, text=text, **fields)
    options = source_options(given, place if append and words is None else words)
    records = _open(data, source, options)
    if records.loss_mask and options.chat_template is None:
        warn(
            "these are conversations, and the tokenizer has no chat template: they are written as "
            "`User: …` and `Assistant: …`, each followed by a blank line. A model that knows a "
            "template of its own reads better what is written by it: give its folder, with "
            "tokenizer_config.json or chat_template.jinja, as --tokenizer.",
        )
    write: Any = append_records
    if not append:
        write = partial(
            prepare_store,
            tokenizer=StoreTokenizer.load(words),
            seq_len=seq_len,
            held_out_users=held_out_users,
            held_out_examples=held_out_examples,
            owners=Owners(owners),
            records_per_user=records_per_user,
            overwrite=overwrite,
        )
    was = _identity(place)
    left = told(lambda: _left(place, was), resume=False)
    with left, linked_anew(place), shown(progress) as bar:
        write(
            records,
            place,
            split=default_split(records.kind) if split is None else SplitRule(split),
            engine=GroupingEngine(engine),
            memory_limit=memory_limit,
            progress=bar,
        )
    with held() as signals:  # the store stands: what remains is short, and belongs to it
        if shared is not None:
            StoreLedger.share(place, shared)
        if StoreLedger(place).history().lines:  # the counts are shown to who may charge it next
            StoreLedger(place).look("prepare")
        made = UserStore.open(place, fixed_graph=True)
        signals.finished()
    return made


def _identity(place: Path) -> str | None:
    """The id of the store at ``place``; None of nothing, and of a store of another version."""
    try:
        return read_meta(place).store_id
    except UseError:
        return None


def _left(place: Path, was: str | None) -> str:
    """What an interrupt has left, in words that follow "interrupted"."""
    if _identity(place) != was:  # between the rename and the end of the call
        return f"when the store at {place} had been written: it is whole"
    unchanged = f"the store at {place} is as it was" if place.exists() else "no store was written"
    kept = kept_for(place.absolute())
    if kept is None:
        return f"before its end: {unchanged}"
    return f"before its end: {unchanged}, and the same call goes on with what is kept in {kept}"


def _open(data: Any, kind: str | None, options: SourceOptions) -> Source:
    """The source of paths, or of a table in memory."""
    if data is None or isinstance(data, str | Path):
        paths = [] if data is None else [data]
        return open_source([str(path) for path in paths], kind=kind, options=options)
    named = isinstance(data, Sequence) and all(isinstance(one, str | Path) for one in data)
    if named and isinstance(data, list | tuple):
        return open_source([str(path) for path in data], kind=kind, options=options)
    return memory.build(data, options, kind=kind)
