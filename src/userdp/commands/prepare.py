"""``userdp.prepare``: records to a user store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from userdp.commands.arguments import Section, refuse
from userdp.commands.progress import shown
from userdp.core.errors import Interrupted, warn
from userdp.core.interrupts import held, on_interrupt
from userdp.core.stages import Progress
from userdp.data.pipeline import Engine, append_records, prepare_store
from userdp.data.sources import KINDS, InputOptions, Source, memory, open_source
from userdp.data.sources.conversations import template_of
from userdp.data.sources.source import SourceOptions
from userdp.data.splits import SplitRule
from userdp.data.store_meta import is_store, read_meta
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger


def sections() -> dict[str, Section]:
    """All that ``--set`` reaches."""
    return {"input": Section(of=InputOptions, without=("user", "text"))}


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
    held_out_examples: float | None = None,
    split: SplitRule | None = None,
    records_per_user: int | None = None,
    engine: Engine = Engine.DUCKDB,
    memory_limit: str = "1GB",
    append: bool = False,
    overwrite: bool = False,
    ledger: str | Path | None = None,
    progress: Progress | None = None,
    **fields: Annotated[Any, sections],
) -> UserStore:
    """Turn records into a user store, or add them to one.

    Every record is stored or counted as dropped, with the reason (``store.meta.drops``). The store
    is written whole or not at all. Its counts are for its operator: they are not differentially
    private.

    Example::

        userdp prepare mail.jsonl.gz --out store

    Args:
        data: files, folders or patterns; for hf a name on the hub; for docstrings, names of
            installed packages, or stdlib. In Python also a `datasets.Dataset`, a data frame of
            pandas or polars, or rows that are dicts.
        out: the store's folder.
        user: the column or field that names a record's user; a list of users where several own it.
        text: the column or field that holds a record's text.
        source: jsonl, csv, parquet, hf, mbox, maildir, git, leaf, stackoverflow, c4, ccnews,
            folder, zip, conversations or docstrings; by default told from the paths, and for tables
            from the names of their fields. JSON Lines, CSV and Parquet may be given together.
        tokenizer: tokenizer.json or a folder that holds one; by default the bundled model's. It
            must come from public text.
        seq_len: most tokens of an example.
        held_out_users: fraction of users of whom nothing is trained on.
        held_out_examples: fraction of the other users' records that are not trained on; by default
            0.05, and 0 with records_per_user, whose stores cannot train otherwise.
        split: hash (that fraction), given (only by the source or input.held_out_from) or first-part
            (a tenth of each user, at most 32); by default the papers' for stackoverflow, c4 and
            ccnews, else hash; of what is appended the store's.
        records_per_user: keep a record of several users if each of its owners has fewer than so
            many (fixed-graph adjacency, ELS only); by default it goes to its first owner only.
        engine: duckdb prepares in this process; spark tokenizes on many machines (needs pyspark and
            Java). The store's content is the same.
        memory_limit: most memory of the grouping stage, for instance 1GB; the rest goes to disk
            beside the store.
        append: add to the store that lies there, which keeps its tokenizer, length and fractions.
        overwrite: replace the store that lies there; its privacy ledger is kept.
        ledger: a privacy ledger that other stores of the same people name too, so that what they
            are charged adds up: a file, begun now if it is not there.
        progress: receives the progress; by default a bar, or lines where stderr is no terminal.
        fields: what concerns only some kinds of source: fields of `InputOptions`, as ``date``.

    Raises:
        UseError: an argument is out of range, or the records as a whole cannot be used.
        FailureError: the disk refused.
        Interrupted: by Ctrl-C or SIGTERM; the place is as it was.
    """
    place, words = Path(out), None if tokenizer is None else Path(tokenizer)
    kept = read_meta(place) if append and not overwrite else None
    refuse({
        "--append and --overwrite exclude each other: give one of them": append and overwrite,
        "--records-per-user bounds all records of a store at once, and cannot be asked of those "
        "that are appended": append and records_per_user is not None,
        "--tokenizer is another one than the store's, by which what is appended is written": kept
        and words is not None
        and StoreTokenizer.load(words).sha256 != kept.tokenizer_sha256,
    })  # fmt: skip
    if (append or overwrite) and is_store(place):
        StoreLedger(place).history()  # refused before anything is written
    shared = None if ledger is None else Path(ledger)
    if shared is not None:
        StoreLedger.require_shareable(place, shared)
    template = template_of(place if append and words is None else words)
    options = SourceOptions(user=user, text=text, **fields, **template)
    records = _open(data, source, options)
    if records.loss_mask and options.chat_template is None:
        warn(
            "these are conversations, and the tokenizer has no chat template: they are written as "
            "`User: …` and `Assistant: …`, each followed by a blank line. A model with a template "
            "reads better what is written by it: give its folder, template included, as --tokenizer"
        )
    usual = KINDS[records.kind].split if records.kind in KINDS else SplitRule.HASH
    usual = SplitRule(kept.sources[-1]["split"]) if kept else usual  # as it was prepared
    how: dict[str, Any] = {"split": usual if split is None else SplitRule(split)}
    how |= {"engine": Engine(engine), "memory_limit": memory_limit}
    if not append:
        usual_share = 0.05 if records_per_user is None else 0.0
        share = usual_share if held_out_examples is None else held_out_examples
        how |= {"held_out_users": held_out_users, "held_out_examples": share}
        how |= {"tokenizer": StoreTokenizer.load(words), "seq_len": seq_len, "overwrite": overwrite}
        how["records_per_user"] = records_per_user
    write = append_records if append else prepare_store
    left = "before its end: no store was written in part"
    with on_interrupt(Interrupted(left)), shown(progress) as bar:
        write(records, place, progress=bar, **how)
    with held() as signals:  # the store stands: what remains is short, and belongs to it
        if shared is not None:
            StoreLedger.share(place, shared)
        # The counts are shown to who may charge it next; a shared ledger has its first line now.
        if StoreLedger(place).history().lines[1:]:
            StoreLedger(place).look("prepare")
        store = UserStore.open(place, fixed_graph=True)
        signals.heard = False
    return store


def _open(data: Any, kind: str | None, options: SourceOptions) -> Source:
    """The source of paths, or of a table in memory."""
    named = [data] if isinstance(data, str | Path) else [] if data is None else data
    if isinstance(named, list | tuple) and all(isinstance(one, str | Path) for one in named):
        return open_source([str(one) for one in named], kind=kind, options=options)
    return memory.table_source(data, options, kind=kind)
