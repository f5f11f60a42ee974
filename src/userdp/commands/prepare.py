"""``userdp.prepare``: records to a user store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from userdp.commands.progress import shown
from userdp.commands.setting import Section, read, section_of
from userdp.commands.source_options import default_split, source_options
from userdp.data.grouping import GroupingEngine
from userdp.data.meta import read_meta
from userdp.data.near_ids import near_hint
from userdp.data.ownership import Owners
from userdp.data.prepare import append_records, kept_for, prepare_store
from userdp.data.progress import Progress
from userdp.data.sources import InputOptions, Source, memory, open_source
from userdp.data.sources.base import SourceOptions
from userdp.data.splits import SplitRule
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.errors import UseError, warn
from userdp.interrupts import held, told
from userdp.ledger import StoreLedger
from userdp.ledger.place import Place
from userdp.reporting.table import Table

REQUIRED = "required"
"""In place of a ledger's path: refuse to prepare a store that shares none."""


def prepare(
    data: Sequence[str] | Any,
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
    settings: Sequence[str] = (),
    progress: Progress | None = None,
    **fields: Any,
) -> UserStore:
    """Turn records into a user store, or add them to one.

    Every record is stored or counted as dropped, with the reason (``store.meta.drops``). The store
    is written whole or not at all; killed, the same command goes on where it was (JSON Lines and
    Parquet files). Its counts are for its operator: they are not differentially private.

    Args:
        data: files, folders or patterns; for hf a name on the hub; for docstrings, names of
            installed packages, or stdlib. In Python also a `datasets.Dataset`, a data frame of
            pandas or polars, or rows that are dicts.
        out: the store's folder.
        user: the column or field that names a record's user; a list of users where several own it.
        text: the column or field that holds a record's text.
        source: jsonl, csv, parquet, hf, mbox, maildir, git, leaf, stackoverflow, c4, ccnews,
            folder, conversations or docstrings; by default told from the paths, and for tables from
            the names of their fields. JSON Lines, CSV and Parquet may be given together.
        tokenizer: tokenizer.json or a folder that holds one; by default the bundled model's. It
            must come from public text.
        seq_len: most tokens of an example.
        held_out_users: fraction of users of whom nothing is trained on.
        held_out_examples: fraction of the other users' records that are not trained on.
        split: hash (that fraction), given (only by the source or input.held_out_from) or first-part
            (a tenth of each user, at most 32); by default the papers' for stackoverflow, c4 and
            ccnews, else hash.
        owners: under first, a record of several users goes to its first owner only; under greedy,
            it is kept if all its owners are below records_per_user (fixed-graph adjacency, ELS
            only).
        records_per_user: the bound of greedy owners.
        engine: duckdb in this process, or spark on many (needs pyspark and Java). The store's
            content is the same.
        memory_limit: most memory of the grouping stage, for instance 1GB (of Spark's Java, on this
            machine); the rest goes to disk beside the store.
        append: add to the store that lies there, which keeps its tokenizer, length and fractions.
        overwrite: replace the store that lies there; its privacy ledger is kept.
        ledger: a privacy ledger that other stores of the same people name too, so that what they
            are charged adds up: a file, begun with the first charge. In a configuration file,
            ledger = "required" refuses to prepare a store without one.
        settings: what concerns only some kinds of source, as input.date=sent.
        progress: is told how far it is; by default a bar, or lines where stderr is no terminal.
        fields: the same as keywords, see `InputOptions`.

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
    fields = read(settings, sections())["input"] | fields
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
    with left, shown(progress) as bar:
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


def sections() -> dict[str, Section]:
    """What ``--set`` reaches."""
    return {"input": section_of(InputOptions, without=("user", "text"))}


def to_dict(store: UserStore) -> dict[str, Any]:
    """What ``userdp prepare --json`` prints: exact counts."""
    return {"store": str(store.path), "operator_only": True, **store.meta.to_dict()}


def in_words(store: UserStore) -> Iterator[Table | str]:
    """What became of each record, and how large each split is."""
    meta, totals = store.meta.to_dict(), store.meta.totals
    yield Table(
        caption="records",
        rows=[
            ("read", f"{totals['records_read']:,}"),
            ("stored", f"{totals['records_stored']:,}"),
            *((f"dropped: {why}", f"{count:,}") for why, count in meta["drops"].items()),
            *(
                (f"examples dropped: {why}", f"{count:,}")
                for why, count in meta["example_drops"].items()
            ),
        ],
    )
    yield Table(
        columns=("split", "users", "examples", "tokens"),
        rows=[
            (name, *(f"{part[one]:,}" for one in ("users", "examples", "tokens")))
            for name, part in totals["splits"].items()
        ],
    )
    if meta["loss_mask"]:
        yield "Read as conversations: the loss counts what the assistant says, and nothing else."
    if (hint := near_hint(totals["near_colliding_users"])) is not None:
        yield f"warning: {hint}"
    yield (
        f"Store: {store.path} (store id {store.meta.store_id[:8]}…). "
        "These counts are exact: operator-only, not differentially private."
    )


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
    return memory.table_source(data, options, kind=kind)
