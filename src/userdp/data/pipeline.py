"""Source to store: the stages of `userdp prepare`, as one call; and of an append.

Records are read, brought together by user and sorted; then they are tokenized, cut and written.
The sorted records are kept beside the store until it is written: an equal call goes on from them
where this one was killed. What the store will be does not depend on that.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from userdp.core.codec import parse
from userdp.core.errors import FailureError, UseError, kind_of
from userdp.core.files import sync, write_json
from userdp.core.stages import NoProgress, Progress
from userdp.core.vocabulary import require_count
from userdp.data.examples import ahead, first_parts, tokenized, write_examples
from userdp.data.grouping import MEMORY_LIMIT, Grouping, GroupingEngine
from userdp.data.meta import StoreMeta
from userdp.data.ownership import Owners, first_owner_facts, greedy_facts, settled
from userdp.data.records import Tally, in_blocks
from userdp.data.sources import Source, user_is
from userdp.data.sources.parsing import with_lost
from userdp.data.splits import SplitRule, require_fraction
from userdp.data.store_folder import locked, records_folder
from userdp.data.tokenize import StoreTokenizer, require_seq_len
from userdp.data.writer import StoreWriter
from userdp.version import __version__

if TYPE_CHECKING:
    from userdp.data.spark import SparkGrouping

_STATE = "state.json"


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
    public data only (invariant 11; the exceptions, both in `ownership`, are `on_one_side`, for
    public sources, and `bounded`, which depends on a graph that ``fixed-graph`` adjacency takes as
    public). Every record is stored or counted as dropped (invariant 10). ``out`` is whole or
    untouched.

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
    bound = _require_bound(Owners(owners), records_per_user)
    if bound is not None and not source.several_owners:
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
            seq_len=require_seq_len(seq_len),
            fractions=fractions,
            loss_mask=source.loss_mask,
            overwrite=overwrite,
        ) as writer,
    ):
        return _fill(writer, source, split, bound, engine, memory_limit, progress)


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
        return _fill(writer, source, split, None, engine, memory_limit, progress)


def _fill(
    writer: StoreWriter,
    source: Source,
    split: SplitRule,
    bound: int | None,
    engine: GroupingEngine,
    memory_limit: str,
    progress: Progress | None,
) -> StoreMeta:
    """All stages, from a source into a writer; ``bound`` is k of ``Owners.GREEDY``, or None."""
    tally, rule, engine = Tally(), SplitRule(split), GroupingEngine(engine)
    progress = progress or NoProgress()
    held_out = writer.meta.held_out_users
    signature = source.signature()
    depends_on = (__version__, signature, bound, held_out, str(engine))
    key = signature and sha256(repr(depends_on).encode()).hexdigest()
    tokens = partial(tokenized, tokenizer=writer.tokenizer, loss_mask=writer.meta.loss_mask)

    with _kept_records(writer.place, key, tally) as (folder, is_sorted, keep):
        grouping = _grouping(engine, folder, memory_limit)
        if not is_sorted:
            progress.stage("reading", source.size)
            records = settled(source, tally, progress, bound=bound, held_out_users=held_out)
            grouping.add(in_blocks(records))
            progress.stage("grouping", None)
            grouping.sort()
            keep(grouping.files)
        blocks = grouping.batches()
        if rule is SplitRule.FIRST_PART:
            blocks = first_parts(blocks, writer.records_of, tally)
        progress.stage("tokenizing", tally.kept)
        # One block is tokenized while the one before it is cut and written.
        write_examples(
            ahead(tokens, blocks), writer, tally,
            rule=rule, one_per_record=bound is not None, at=progress.at,
        )  # fmt: skip
        if tally.records_stored == 0:
            raise UseError(_nothing(tally), hint="check --user, --text and PATH")
        ownership = first_owner_facts() if tally.of_several else None
        return writer.finish(
            source=_facts(source, rule, tally),
            tally=tally,
            ownership=ownership if bound is None else greedy_facts(bound),
        )


def _grouping(engine: GroupingEngine, folder: Path, memory_limit: str) -> Grouping | SparkGrouping:
    if engine is GroupingEngine.DUCKDB:
        return Grouping(folder, memory_limit=memory_limit)
    from userdp.data.spark import SparkGrouping

    return SparkGrouping(folder, memory_limit=memory_limit)


@contextmanager
def _kept_records(
    place: Path, key: str | None, tally: Tally
) -> Iterator[tuple[Path, bool, Callable[[Sequence[Path]], None]]]:
    """The folder of working files for the store at ``place``, which goes when the block ends.

    An interrupt or a kill leaves it once the records are sorted, and a call of the same ``key``
    takes it over. The key tells what sorted records depend on; None: a source cannot tell.

    Yields:
        The folder; whether sorted records of an earlier call lie there, which ``tally`` counts
        then; and what says that they do now, in which files.
    """
    place = records_folder(place)
    place.mkdir(mode=0o700, exist_ok=True)
    folder, state = place / "files", place / _STATE

    def sizes(files: Iterable[Path]) -> dict[str, int]:
        return {str(file.relative_to(folder)): file.stat().st_size for file in files}

    def keep(files: Sequence[Path]) -> None:
        for file in files:
            sync(file)
        if key is not None:
            write_json(state, {"key": key, "sizes": sizes(files), "tally": tally.facts()})

    with locked(place):
        kept: Any = None
        with suppress(OSError, ValueError):
            kept = parse(state.read_bytes())
            there = sizes(folder / name for name in kept["sizes"])
            kept = kept if (kept["key"], kept["sizes"]) == (key, there) else None
        if kept is None:
            shutil.rmtree(folder, ignore_errors=True)
            state.unlink(missing_ok=True)
            folder.mkdir()
        else:
            tally.restore(kept["tally"])
        stays = False
        try:
            yield folder, kept is not None, keep
        except KeyboardInterrupt:
            stays = state.exists()
            raise
        finally:
            if not stays:
                shutil.rmtree(place, ignore_errors=True)


def _facts(source: Source, rule: SplitRule, tally: Tally) -> dict[str, Any]:
    facts = {
        "kind": source.kind,
        "public": source.public,
        "split": str(rule),
        "user_is": user_is(source.kind, source.facts.get("fields", [])),
        "may_name_several": source.several_owners,
    }
    return with_lost({**facts, **source.facts}, tally.written_by)


def _require_bound(owners: Owners, records_per_user: int | None) -> int | None:
    if (owners is Owners.GREEDY) != (records_per_user is not None):
        raise UseError(
            "greedy owners and records_per_user go together: how many records of each user may "
            "be taken",
            hint="give --owners greedy --records-per-user K, where K under ELS is the least "
            "group_size; a user is capped in training: userdp train --group-size",
        )
    return None if records_per_user is None else require_count("records_per_user", records_per_user)


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
