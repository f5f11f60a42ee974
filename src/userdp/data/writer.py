"""Write a user store: all of it, or nothing. A new store is an append to an empty one."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from userdp.data import format as layout
from userdp.data.beside import abandoned, hidden, keep_ledger, recover, require_free
from userdp.data.blocks import digests_of, read_blocks, seal
from userdp.data.checkpoints import (
    SCRATCH,
    Checkpoints,
    clear,
    forget_state,
    read_state,
    resume_key,
)
from userdp.data.erasure import finish_erasure
from userdp.data.examples import Recipe
from userdp.data.index import EMPTY, Index
from userdp.data.locking import lock_store
from userdp.data.meta import StoreMeta, read_meta
from userdp.data.near_ids import near_colliding
from userdp.data.parts import Part, PartJob
from userdp.data.records import Tally
from userdp.data.segments import SegmentWriter
from userdp.data.splits import Split
from userdp.data.states import State, StateKind
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.files import sync, write_file, write_json
from userdp.interrupts import held

_SINGLE_OWNER = {"rule": "single", "adjacency": "add-or-remove"}
_NO_TOTALS = {"records_read": 0, "records_stored": 0, "splits": {}}


class StoreWriter(SegmentWriter):
    """Writes users one after another, in order of their ids' bytes; see `create` and `append`.

    A context manager. The new store, or the new generation of the old one, appears in one rename
    when `finish` is done. Leaving the block before that leaves no store, or the old one, and
    nothing else; but an interrupt leaves what the next writer can go on with, as a kill does, and
    whatever else a kill leaves goes when the next writer starts: see `checkpoints`.

    Attributes:
        meta: of the store that is added to, empty for a new one; after `finish`, of what was
            written.
        tokenizer: of the store.
    """

    @classmethod
    def create(
        cls,
        out: Path,
        *,
        tokenizer: StoreTokenizer,
        seq_len: int,
        fractions: tuple[float, float] = (0.0, 0.0),
        loss_mask: bool = False,
        overwrite: bool = False,
        segment_tokens: int = layout.SEGMENT_TOKENS,
        resume: dict[str, Any] | None = None,
    ) -> Self:
        """The writer of a new store at ``out``.

        Args:
            out: the store's place.
            tokenizer: is copied into the store.
            seq_len: most tokens of an example.
            fractions: of held-out users and held-out examples.
            loss_mask: whether each write brings targets.
            overwrite: replace the store that lies at ``out``; its privacy ledger is carried over,
                since the people stay charged for what was released.
            segment_tokens: a new segment begins once one holds this many.
            resume: what else the store depends on, so that a killed run of the same can be gone on
                with; None: none is.

        Raises:
            UseError: something lies at ``out`` and ``overwrite`` is false, or it is not a store.
        """
        place = out.absolute()
        recover(place)
        require_free(place, overwrite=overwrite)
        place.parent.mkdir(parents=True, exist_ok=True)
        meta = _empty(tokenizer, seq_len=seq_len, fractions=fractions, loss_mask=loss_mask)
        key = resume_key(meta, resume)
        folder, lock = abandoned(place, key) or hidden(place)
        return cls(
            folder, lock, meta, tokenizer, EMPTY, place=place, overwrite=overwrite, key=key,
            segment_tokens=segment_tokens,
        )  # fmt: skip

    @classmethod
    def append(
        cls,
        store: Path,
        *,
        segment_tokens: int = layout.SEGMENT_TOKENS,
        resume: dict[str, Any] | None = None,
    ) -> Self:
        """The writer of more users, or more of the same users, into the store at ``store``.

        Token files are never rewritten, and readers that have the store open keep the generation
        that they opened. One appender at a time: the store's folder is locked. The store gets a
        new ``store_id`` and content hash, as it is other data: a run that began before refuses to
        resume on it.

        Args:
            store: the store's place.
            segment_tokens: as in `create`.
            resume: as in `create`.

        Raises:
            UseError: no store of this version is there, it lacks its user ids, or another process
                appends to it.
        """
        folder = store.absolute()
        read_meta(folder)
        lock = lock_store(folder)
        try:
            finish_erasure(folder)
            meta = read_meta(folder)
            tokenizer = StoreTokenizer.load(folder / layout.TOKENIZER)
            return cls(
                folder, lock, meta, tokenizer.with_end(meta.end_of_text_id),
                UserStore.open(folder, fixed_graph=True).index(), place=folder, overwrite=False,
                key=resume_key(meta, resume), segment_tokens=segment_tokens,
            )  # fmt: skip
        except BaseException:
            os.close(lock)
            raise

    def __init__(
        self,
        folder: Path,
        lock: int,
        meta: StoreMeta,
        tokenizer: StoreTokenizer,
        old: Index,
        *,
        place: Path,
        overwrite: bool,
        key: str | None,
        segment_tokens: int,
    ) -> None:
        self.meta, self.tokenizer = meta, tokenizer
        self._lock, self._place, self._overwrite, self._key = lock, place, overwrite, key
        for name in (layout.SEGMENTS, layout.INDEX):
            (folder / name).mkdir(exist_ok=True)
        clear(folder, meta, read_state(folder, key))
        super().__init__(
            folder,
            dtype=meta.token_dtype,
            loss_mask=meta.loss_mask,
            old=old,
            first_segment=meta.segments,
            segment_tokens=segment_tokens,
        )
        self._adopted: dict[str, tuple[dict[str, Any], bytes]] = {}

    @property
    def scratch(self) -> Path:
        """A folder for working files, on the store's disk; gone when the writer closes."""
        return self.folder / SCRATCH

    def checkpoints(self, tally: Tally) -> Checkpoints:
        """What is kept of the run for the case that it is killed."""
        return Checkpoints(self, self._key, tally)

    def part_job(self, recipe: Recipe) -> PartJob:
        """What other processes have to know to write parts that `adopt` takes."""
        generation = self.meta.generation
        index = self.folder / layout.INDEX / layout.segment_name(max(generation, 0))
        return PartJob(
            recipe=recipe,
            tokenizer=self.tokenizer.content,
            end_of_text_id=self.tokenizer.end_of_text_id,
            known=index.resolve() if generation >= 0 else None,
        )

    def adopt(self, part: Part) -> None:
        """Take over users that another process wrote: their segments become this store's.

        Guarantee: of a part no token is read here; the cost is that of its users and spans.

        Args:
            part: of users whom neither this writer nor another part has. It is taken apart.
        """
        first = self.segments
        for number in range(part.segments):
            old = Path(layout.SEGMENTS) / layout.segment_name(number)
            new = Path(layout.SEGMENTS) / layout.segment_name(first + number)
            (part.folder / old).rename(self.folder / new)
            for file in (self.folder / new).iterdir():
                facts, digests = part.files[str(old / file.name)]
                self._adopted[str(new / file.name)] = facts, bytes.fromhex(digests)
        self.take(part.index(), first_user=len(self.ids), first_segment=first)
        self.segments += part.segments
        for split in Split:
            self.examples[split] += part.examples[split]
            self.tokens[split] += part.tokens[split]

    def finish(
        self, *, source: dict[str, Any], tally: Tally, ownership: dict[str, Any] | None = None
    ) -> StoreMeta:
        """Write the new generation of the index, sync, and let it count.

        Args:
            source: what the source says of itself.
            tally: its books must balance.
            ownership: replaces the store's (see `StoreMeta`); None: it stays.
        """
        tally.balance()
        self.close()
        old, index = self.meta, self.index()
        generation = Path(layout.INDEX) / layout.segment_name(old.generation + 1)
        index.write(self.folder / generation)
        names = (layout.USERS, layout.USER_IDS, layout.SPANS)
        here = [*self.new_files(), *(generation / name for name in names)]
        new_files = [file for file in here if str(file) not in self._adopted]
        kept = {name: sums for name, sums in old.files.items() if not _is_index(name)}
        known = self._old_digests()
        for name, (facts, digests) in self._adopted.items():
            kept[name], known[name] = facts, digests
        files = seal(self.folder, generation, kept, new_files, known=known)
        store_id = secrets.token_hex(16)
        kind = StateKind.APPENDED if old.states else StateKind.PREPARED
        meta = replace(
            old,
            store_id=store_id,
            content_sha256=index.content_hash(seq_len=old.seq_len, loss_mask=old.loss_mask),
            sources=[*old.sources, source],
            drops=_added(old.drops, tally.drops),
            example_drops=_added(old.example_drops, tally.example_drops),
            totals=totals_of(self, index, tally, old.totals),
            generation=old.generation + 1,
            segments=self.segments,
            ownership=ownership or old.ownership,
            files=files,
            states=(*old.states, State(id=store_id, kind=kind, segments=self.segments)),
        )
        with held() as signals:  # between its two renames there is no store at its place
            self._publish(meta)
            signals.finished()
        self.meta = meta
        return meta

    def _old_digests(self) -> dict[str, bytes]:
        """Of the blocks of the files that are there already: of a new store, the tokenizer."""
        if self.folder != self._place:
            return {layout.TOKENIZER: digests_of(self.tokenizer.content)}
        return read_blocks(self.folder, self.meta)

    def _publish(self, meta: StoreMeta) -> None:
        forget_state(self.folder)
        shutil.rmtree(self.scratch, ignore_errors=True)
        is_new = self.folder != self._place
        if is_new:
            write_file(self.folder / layout.TOKENIZER, self.tokenizer.content)
        for folder, _, _ in os.walk(self.folder):
            sync(Path(folder))
        write_json(self.folder / layout.META, meta.to_dict())
        if is_new:
            self._move()

    def _move(self) -> None:
        """Put the new store into its place, and the old one away."""
        place = self._place
        require_free(place, overwrite=self._overwrite)
        if not place.exists():
            self.folder.rename(place)
            sync(place.parent)
            return
        old = place.with_name(f".{place.name}.old-{secrets.token_hex(4)}")
        held = os.open(place, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)  # until an append to the old store is done
            keep_ledger(place, self.folder)
            place.rename(old)
        finally:
            os.close(held)
        self.folder.rename(place)
        sync(place.parent)
        keep_ledger(old, place)
        shutil.rmtree(old, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.abandon()
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        if interrupted and read_state(self.folder, self._key) is not None:
            pass  # the next call goes on from there
        elif self.folder == self._place:
            clear(self.folder, self.meta, None)
        else:
            forget_state(self.folder)
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def _empty(
    tokenizer: StoreTokenizer, *, seq_len: int, fractions: tuple[float, float], loss_mask: bool
) -> StoreMeta:
    """The facts about a store of nobody, which a new store is an append to."""
    content = {"bytes": len(tokenizer.content), "sha256": tokenizer.sha256}
    return StoreMeta(
        format_version=layout.FORMAT_VERSION,
        store_id="",
        seq_len=seq_len,
        vocab_size=tokenizer.vocab_size,
        token_dtype=tokenizer.dtype,
        end_of_text_id=tokenizer.end_of_text_id,
        tokenizer_sha256=tokenizer.sha256,
        content_sha256="",
        sources=[],
        held_out_users=fractions[0],
        held_out_examples=fractions[1],
        drops={},
        example_drops={},
        totals=_NO_TOTALS,
        generation=-1,
        segments=0,
        loss_mask=loss_mask,
        ownership=_SINGLE_OWNER,
        files={layout.TOKENIZER: content},
    )


def _is_index(name: str) -> bool:
    return name.startswith(f"{layout.INDEX}/")


def _added(old: dict[str, int], new: Counter[str]) -> dict[str, int]:
    return dict(sorted((Counter(old) + new).items()))


def totals_of(
    written: SegmentWriter, index: Index, tally: Tally, before: dict[str, Any]
) -> dict[str, Any]:
    """`StoreMeta.totals`: what was there ``before``, and what was written and read since."""
    nothing = {"examples": 0, "tokens": 0}
    splits = {}
    for split in Split:
        was = before["splits"].get(str(split), nothing)
        splits[str(split)] = {
            "users": index.users_of(split),
            "examples": was["examples"] + written.examples[split],
            "tokens": was["tokens"] + written.tokens[split],
        }
    return {
        "records_read": before["records_read"] + tally.records_read,
        "records_stored": before["records_stored"] + tally.records_stored,
        "users": len(index.ids),
        "near_colliding_users": near_colliding(index.ids),
        "examples": sum(part["examples"] for part in splits.values()),
        "tokens": sum(part["tokens"] for part in splits.values()),
        "splits": splits,
    }
