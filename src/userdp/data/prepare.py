"""Source to store: the stages of `userdp prepare`, as one call; and of an append."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from userdp.data.ahead import ahead
from userdp.data.checkpoints import forget_state
from userdp.data.columns import Columns, in_columns
from userdp.data.examples import Examples, Recipe
from userdp.data.grouping import MEMORY_LIMIT, Grouping, GroupingEngine
from userdp.data.meta import StoreMeta
from userdp.data.ownership import (
    FirstOwner,
    Owners,
    bounded,
    first_owner_facts,
    greedy_facts,
)
from userdp.data.progress import NoProgress, Progress
from userdp.data.records import Tally
from userdp.data.repeats import on_one_side
from userdp.data.sources import Source
from userdp.data.sources.base import BlockSource, SignedSource
from userdp.data.sources.provenance import with_lost
from userdp.data.sources.several import Several
from userdp.data.sources.table import FileTable
from userdp.data.splits import SplitRule, require_fraction
from userdp.data.tokenize import StoreTokenizer, require_seq_len
from userdp.data.writer import StoreWriter
from userdp.errors import FailureError, UseError, kind_of
from userdp.version import __version__
from userdp.vocabulary import require_count


def prepare_store(
    source: Source,
    out: Path,
    *,
    tokenizer: StoreTokenizer,
    seq_len: int = 128,
    held_out_users: float = 0.1,
    held_out_examples: float = 0.05,
    split: SplitRule = SplitRule.HASH,
    owners: Owners = Owners.FIRST,
    records_per_user: int | None = None,
    overwrite: bool = False,
    engine: GroupingEngine = GroupingEngine.DUCKDB,
    memory_limit: str = MEMORY_LIMIT,
    progress: Progress | None = None,
) -> StoreMeta:
    """Read ``source``, write the user store ``out``, return its facts.

    Guarantee: a private user's examples, splits and order depend on that user's records and
    public data only (invariant 11; the exceptions are `repeats`, for public sources, and
    `ownership.bounded`, which depends on a graph that ``fixed-graph`` adjacency takes as public).
    Every record is stored or counted as dropped (invariant 10). ``out`` is whole or untouched.
    Where the source is files of a table, a call that was killed or interrupted is gone on with by
    the next equal one.

    Args:
        source: see `userdp.data.sources`.
        out: the store's folder.
        tokenizer: made from public text.
        seq_len: most tokens of an example, 2 to 2**20.
        held_out_users: fraction of users, 0 to 1.
        held_out_examples: fraction of training users' records, 0 to 1; under ``HASH`` alone.
        split: how a training user's records are split.
        owners: what becomes of records with several owners.
        records_per_user: the bound k of ``Owners.GREEDY``, and only there.
        overwrite: replace the store at ``out``.
        engine: what does the work; the store's content does not depend on it.
        memory_limit: of the grouping stage, e.g. "1GB"; with Spark, of its driver.
        progress: is told how far the work is; default nobody.

    Raises:
        UseError: bad arguments or input, or nothing to store.
        FailureError: the disk is full, or another failure of the machine.
    """
    require_seq_len(seq_len)
    stages = _Stages(
        source=source,
        rule=SplitRule(split),
        bound=_require_bound(Owners(owners), records_per_user),
        engine=GroupingEngine(engine),
        memory_limit=memory_limit,
        progress=progress or NoProgress(),
    )
    if stages.bound is not None and not source.several_owners:
        raise UseError(
            f"a source of kind {source.kind} has records of one owner each",
            hint="leave --owners out",
        )
    fractions = (
        require_fraction("held_out_users", held_out_users),
        require_fraction("held_out_examples", held_out_examples),
    )
    with (
        _disk_errors(out),
        StoreWriter.create(
            out,
            tokenizer=tokenizer,
            seq_len=seq_len,
            fractions=fractions,
            loss_mask=source.loss_mask,
            overwrite=overwrite,
            resume=stages.identity(),
        ) as writer,
    ):
        return stages.run(writer)


def append_records(
    source: Source,
    store: Path,
    *,
    split: SplitRule = SplitRule.HASH,
    engine: GroupingEngine = GroupingEngine.DUCKDB,
    memory_limit: str = MEMORY_LIMIT,
    progress: Progress | None = None,
) -> StoreMeta:
    """Add the records of ``source`` to a store, for users it knows and for new ones.

    Token files are not rewritten; the cost follows what is new (and the number of users). The
    tokenizer, ``seq_len`` and the fractions held out are the store's own. A known user's records
    go on being numbered where they ended, so a store appended to is the store prepared at once,
    but for the order in which a user's records came. The privacy ledger stays: who was in a
    store that a run was charged in stays charged.

    Args:
        source: see `userdp.data.sources`; of records with one owner.
        store: a store that has its user ids; readers and runs may have it open.
        split: as in `prepare_store`.
        engine: as there.
        memory_limit: as there.
        progress: as there.

    Raises:
        UseError: no store is there, it has no user ids, somebody else appends, or the source does
            not fit it; or there is nothing to store.
        FailureError: the disk is full. The store is then as it was.
    """
    stages = _Stages(
        source=source,
        rule=SplitRule(split),
        bound=None,
        engine=GroupingEngine(engine),
        memory_limit=memory_limit,
        progress=progress or NoProgress(),
    )
    with _disk_errors(store), StoreWriter.append(store, resume=stages.identity()) as writer:
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
        return stages.run(writer)


class _Stages:
    """Reading, grouping, tokenizing and writing: from a source into the writer of a store.

    Args:
        source, engine, memory_limit, progress: as in `prepare_store`.
        rule: how a training user's records are split.
        bound: k of ``Owners.GREEDY``; None: each record is its first owner's.
    """

    def __init__(
        self,
        *,
        source: Source,
        rule: SplitRule,
        bound: int | None,
        engine: GroupingEngine,
        memory_limit: str,
        progress: Progress,
    ) -> None:
        self.source, self.rule, self.bound = source, rule, bound
        self._engine, self._memory_limit, self._progress = engine, memory_limit, progress
        self._tally = Tally()
        self._first_owner = FirstOwner(self._tally)

    def identity(self) -> dict[str, Any] | None:
        """What a store depends on besides its own facts; None if the source cannot tell."""
        source = self.source
        signature = source.signature() if isinstance(source, SignedSource) else None
        if signature is None:
            return None
        return {
            "version": __version__,
            "source": signature,
            "facts": self._source_facts(),
            "bound": self.bound,
            "engine": str(self._engine),
        }

    def run(self, writer: StoreWriter) -> StoreMeta:
        """All stages; what a killed run finished of them is left out."""
        tally = self._tally
        if self._engine is GroupingEngine.SPARK:
            self._on_spark(writer)
        else:
            self._here(writer)
        if tally.records_stored == 0:
            raise UseError(_nothing(tally), hint="check --user, --text and PATH")
        return writer.finish(source=self._source_facts(), tally=tally, ownership=self._ownership())

    def _here(self, writer: StoreWriter) -> None:
        """In this process: read, group by DuckDB, tokenize, cut and write."""
        tally, progress, checkpoints = self._tally, self._progress, writer.checkpoints(self._tally)
        state = checkpoints.restore()
        with Grouping(writer.scratch, memory_limit=self._memory_limit) as grouping:
            if state is None:
                progress.stage("reading", self.source.size)
                done, kept = 0, grouping.add(self._blocks(writer.meta.held_out_users))
                progress.stage("grouping", None)
                grouping.sort()
                several = self._first_owner.several
                checkpoints.grouped(kept=kept, several=several, files=grouping.files)
            else:
                kept, done, self._first_owner.several = state.kept, state.done, state.several
            progress.stage("tokenizing", kept)
            examples = Examples(
                writer,
                tokenizer=writer.tokenizer,
                recipe=self._recipe(writer),
                tally=tally,
                at_segment=checkpoints.segment,
            )
            # One block is tokenized while the one before it is cut and written.
            for block, encoded in ahead(examples.encode, grouping.batches(skip=done)):
                examples.add(encoded)
                done += len(block)
                progress.at(done)
            examples.flush()

    def _on_spark(self, writer: StoreWriter) -> None:
        """On Spark's executors; here only what needs all records in their order, and the books."""
        from userdp.data.spark import SparkJob

        tally, progress, checkpoints = self._tally, self._progress, writer.checkpoints(self._tally)
        state = checkpoints.restore()
        limit = self._memory_limit
        with SparkJob(writer.scratch, memory_limit=limit, progress=progress) as job:
            if state is None:
                tables = self._tables()
                if tables:
                    kept, self._first_owner.several = job.read(tables, tally)
                else:
                    progress.stage("reading", self.source.size)
                    kept = job.spool(self._blocks(writer.meta.held_out_users))
                several = self._first_owner.several
                checkpoints.grouped(kept=kept, several=several, files=job.files)
            else:
                self._first_owner.several = state.several
            parts = job.write(writer.part_job(self._recipe(writer)))
        # Parts are taken apart below: a run that is killed from here on is not gone on with.
        forget_state(writer.folder)
        for part in parts:
            writer.adopt(part)
            tally.add(part.tally)

    def _recipe(self, writer: StoreWriter) -> Recipe:
        return Recipe.of(writer.meta, rule=self.rule, one_per_record=self.bound is not None)

    def _tables(self) -> Sequence[FileTable]:
        """The source as tables that may be read in pieces; none where it must be read in order."""
        source = self.source
        if self.bound is not None:  # whether a record is taken depends on those before it
            return ()
        if isinstance(source, Several):
            return source.parts
        return (source,) if isinstance(source, FileTable) else ()

    def _ownership(self) -> dict[str, Any] | None:
        """What `StoreMeta.ownership` says; None: each record had one owner."""
        if self.bound is not None:
            return greedy_facts(self.bound)
        return first_owner_facts() if self._first_owner.several else None

    def _source_facts(self) -> dict[str, Any]:
        source = self.source
        facts = {"kind": source.kind, "public": source.public, "split": str(self.rule)}
        return with_lost({**facts, **source.facts()}, self._tally.written_by)

    def _blocks(self, held_out_users: float) -> Iterator[Columns]:
        """The records to store, one owner each."""
        source, tally = self.source, self._tally
        if isinstance(source, BlockSource):
            blocks = source.blocks(tally, self._progress)
        else:
            blocks = in_columns(source.records(tally, self._progress))
        if self.bound is not None:
            records = bounded(
                chain.from_iterable(blocks),
                records_per_user=self.bound,
                held_out_users=held_out_users,
                tally=tally,
            )
            blocks = in_columns(records)
        elif source.several_owners:
            blocks = map(self._first_owner, blocks)
        if source.public:
            records = on_one_side(
                chain.from_iterable(blocks), held_out_users=held_out_users, tally=tally
            )
            blocks = in_columns(records)
        return blocks


def _require_bound(owners: Owners, records_per_user: int | None) -> int | None:
    if owners is Owners.GREEDY:
        if records_per_user is None:
            raise UseError(
                "greedy contribution bounding needs records_per_user: how many records of each "
                "user may be taken",
                hint="give --records-per-user; under ELS it is the least group_size",
            )
        return require_count("records_per_user", records_per_user)
    if records_per_user is not None:
        raise UseError(
            "records_per_user is for greedy contribution bounding alone",
            hint="give --owners greedy, or cap users in training: userdp train --group-size",
        )
    return None


@contextmanager
def _disk_errors(store: Path) -> Iterator[None]:
    """`FailureError` where the disk fails."""
    try:
        yield
    except OSError as error:
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
