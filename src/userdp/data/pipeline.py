"""From a source to a store: the stages of `userdp prepare`, and of an append, as one call.

Records are read, tokenized, brought together by user, cut into examples and written. Working files
lie in the folder that is written, and go with the end of the call; after a kill, with the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

from userdp.core.errors import FailureError, UseError, kind_of
from userdp.core.files import working_folder
from userdp.core.stages import Progress
from userdp.core.vocabulary import Adjacency, require_count, require_fraction
from userdp.data.examples import ahead, first_parts, tokenized, write_examples
from userdp.data.grouping import MEMORY_LIMIT, Grouping
from userdp.data.ownership import FIRST_OWNER, bounded
from userdp.data.records import Record, Tally, in_blocks
from userdp.data.sources import Source, user_is
from userdp.data.sources.input_files import READING, with_lost
from userdp.data.spark import tokenized_by_spark
from userdp.data.splits import SplitRule
from userdp.data.store_meta import MAX_SEQ_LEN, MIN_SEQ_LEN, StoreMeta
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.writer import StoreWriter


class Engine(StrEnum):
    """What tokenizes the records: threads of this process, or executors of Apache Spark."""

    DUCKDB = "duckdb"
    SPARK = "spark"


class Stages(TypedDict, total=False):
    """How the records of a source become examples; see `prepare_store`."""

    split: SplitRule
    engine: Engine
    memory_limit: str
    progress: Progress | None


def prepare_store(
    source: Source,
    out: Path,
    *,
    tokenizer: StoreTokenizer,
    seq_len: int = 128,
    held_out_users: float = 0.1,
    held_out_examples: float = 0.05,
    records_per_user: int | None = None,
    overwrite: bool = False,
    **stages: Unpack[Stages],
) -> StoreMeta:
    """Read ``source``, write the user store ``out``, return its facts.

    Guarantee: a private user's examples, splits and order depend on that user's records and
    public data only (invariant 11; `ownership.bounded` depends on a graph of owners, which
    ``fixed-graph`` adjacency takes as public). Every record is stored or counted as dropped
    (invariant 10). ``out`` is whole or untouched.

    Args:
        source: see `userdp.data.sources`.
        out: the store's folder.
        tokenizer: made from public text.
        seq_len: most tokens of an example, 2 to 2**20.
        held_out_users: fraction of users, 0 to 1.
        held_out_examples: fraction of training users' records, 0 to 1; under ``HASH`` alone.
        records_per_user: what becomes of records with several owners: None gives each to its
            first owner; k keeps those of which each owner has at most k (see `ownership`).
        overwrite: replace the store at ``out``.
        stages: ``split``, how a training user's records are split (by their hash); ``engine``, what
            tokenizes (this process; the store's content does not depend on it); ``memory_limit`` of
            DuckDB's sort, e.g. "1GB"; ``progress``, which shows how far the work is.

    Raises:
        UseError: bad arguments or input, or nothing to store.
        FailureError: the disk is full, or another failure of the machine.
    """
    if records_per_user is not None:
        require_count("records_per_user", records_per_user)
        if not source.several_owners:
            raise UseError(
                f"a source of kind {source.kind} has records of one owner each",
                hint="leave --records-per-user out; what a user gives to a step is capped in "
                "training: `userdp train --group-size`",
            )
    with (
        _disk_errors(out),
        StoreWriter.create(
            out,
            tokenizer=tokenizer,
            overwrite=overwrite,
            seq_len=require_count("seq_len", seq_len, at_least=MIN_SEQ_LEN, at_most=MAX_SEQ_LEN),
            held_out_users=require_fraction("held_out_users", held_out_users),
            held_out_examples=require_fraction("held_out_examples", held_out_examples),
            loss_mask=source.loss_mask,
        ) as writer,
    ):
        return _fill(writer, source, records_per_user, **stages)


def append_records(source: Source, store: Path, **stages: Unpack[Stages]) -> StoreMeta:
    """Add the records of ``source`` to a store, for users it knows and for new ones.

    Token files are not rewritten; the cost follows what is new (and the number of users). The
    tokenizer, ``seq_len`` and the fractions held out are the store's own. A known user's records
    go on being numbered where they ended, so a store appended to is the store prepared at once,
    but for the order in which a user's records came. The privacy ledger stays: who was in a
    store that a run was charged in stays charged.

    Args:
        source: see `userdp.data.sources`; of records with one owner.
        store: a store that has its user ids; readers and runs may have it open.
        stages: as in `prepare_store`.

    Raises:
        UseError: no store is there, it has no user ids, somebody else appends, or the source does
            not fit it; or there is nothing to store.
        FailureError: the disk is full. The store is then as it was.
    """
    with _disk_errors(store), StoreWriter.append(store) as writer:
        if writer.meta.ownership["rule"] == "greedy":
            raise UseError(
                "records of several owners cannot be appended: the bound on each owner was "
                "settled over all records at once",
                hint="prepare the store again from all of its sources",
            )
        if source.loss_mask != writer.meta.loss_mask:
            raise UseError(
                "a conversation store takes conversations alone, and another store none: the "
                "loss would count other tokens than before",
                hint="prepare a store of their own",
            )
        return _fill(writer, source, None, **stages)


def _fill(
    writer: StoreWriter,
    source: Source,
    bound: int | None,
    *,
    split: SplitRule = SplitRule.HASH,
    engine: Engine = Engine.DUCKDB,
    memory_limit: str = MEMORY_LIMIT,
    progress: Progress | None = None,
) -> StoreMeta:
    """All stages, from a source into a writer; ``bound`` is `prepare_store`'s records_per_user."""
    tally, rule, progress = Tally(), SplitRule(split), progress or Progress()
    held_out, loss_mask = writer.meta.held_out_users, writer.meta.loss_mask
    tokens = partial(tokenized, tokenizer=writer.tokenizer, loss_mask=loss_mask)
    with working_folder(writer.folder, "records") as folder:
        groups = Grouping(folder, memory_limit=memory_limit)
        progress.stage("reading", source.size)
        records = source.records(tally, progress, all_owned=bound is not None)
        if bound is not None:
            records = bounded(records, records_per_user=bound, held_out_users=held_out, tally=tally)
        per_user: Counter[bytes] = Counter()
        if rule is SplitRule.FIRST_PART:
            records = _counted(records, per_user)
        blocks = in_blocks(records, loss_mask=loss_mask)
        if Engine(engine) is Engine.SPARK:
            blocks = tokenized_by_spark(tokens, blocks, folder)
        else:
            blocks = ahead(tokens, blocks)  # a block is tokenized while the next one is read
        groups.add(blocks)
        progress.stage("grouping", None)
        groups.sort()
        blocks = groups.batches()
        if rule is SplitRule.FIRST_PART:
            blocks = first_parts(blocks, per_user, writer.is_new, tally)
        progress.stage("writing", tally.kept)
        write_examples(
            blocks, writer, tally,
            rule=rule, one_per_record=bound is not None, at=progress.at,
        )  # fmt: skip
    if tally.records_stored == 0:
        raise UseError(_nothing(tally), hint=source.advice())
    ownership: dict[str, Any] | None = FIRST_OWNER if tally.of_several else None
    if bound is not None:
        adjacency = str(Adjacency.FIXED_GRAPH)
        ownership = {"rule": "greedy", "adjacency": adjacency, "records_per_user": bound}
    return writer.finish(source=_facts(source, rule, tally), tally=tally, ownership=ownership)


def _counted(records: Iterable[Record], per_user: Counter[bytes]) -> Iterator[Record]:
    for record in records:
        per_user[record.user] += 1
        yield record


def _facts(source: Source, rule: SplitRule, tally: Tally) -> dict[str, Any]:
    facts = {
        "kind": source.kind,
        "split": str(rule),
        "user_is": user_is(source.kind, source.fields),
        "may_name_several": source.several_owners,
        **({"fields": list(source.fields)} if source.fields else {}),
    }
    return with_lost({**facts, **source.facts}, tally.written_by)


@contextmanager
def _disk_errors(store: Path) -> Iterator[None]:
    """`FailureError` where the disk fails, but for what failed in reading the source."""
    try:
        yield
    except OSError as error:
        if READING in getattr(error, "__notes__", ()):
            raise
        raise FailureError(
            f"the store at {store} could not be written: {kind_of(error)}; "
            "what was there before is unchanged",
            hint="is the disk full, or the folder read-only?",
        ) from error


def _nothing(tally: Tally) -> str:
    if tally.records_read == 0:
        return "nothing to store: the source has no records"
    reasons = ", ".join(str(reason) for reason, _ in tally.drops.most_common())
    return f"nothing to store: none of the records can be used ({reasons})"
