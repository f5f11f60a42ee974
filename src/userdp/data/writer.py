"""Write a user store: all of it, or nothing. A new store is an append to an empty one.

A new store is written into a hidden folder ``.NAME.partial-…`` beside its place; one that it
replaces is moved to ``.NAME.old-…`` meanwhile. Both hold people's text, so whoever makes the next
store, or erases somebody from this one, removes what a killed process left of them.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from userdp.data import meta as layout
from userdp.data.files import clear, index_folder, lock_of, records_folder, require_lock
from userdp.data.index import EMPTY, Index, Known, merged
from userdp.data.meta import State, StateKind, StoreMeta, is_store, read_meta
from userdp.data.near_ids import near_colliding
from userdp.data.records import Tally
from userdp.data.segments import Segment, SegmentWriter
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.data.verify import seal
from userdp.errors import UseError
from userdp.files import in_the_way, operator_folder, sync, write_file, write_json
from userdp.interrupts import held


class StoreWriter(SegmentWriter):
    """Writes users one after another, in order of their ids' bytes; see `create` and `append`.

    A context manager. The new store, or the new generation of the old one, appears in one rename
    when `finish` is done. Leaving the block before that leaves no store, or the old one.

    Attributes:
        place: of the store.
        meta: of the store that is added to, empty for a new one; after `finish`, of what was
            written.
        tokenizer: of the store.
        known: the folder of the index that is added to; None for a new store.
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

        Raises:
            UseError: something lies at ``out`` and ``overwrite`` is false, or it is not a store.
        """
        place = out.absolute()
        _remove_abandoned(place)
        _require_free(place, overwrite=overwrite)
        place.parent.mkdir(parents=True, exist_ok=True)
        folder = place.with_name(f".{place.name}.partial-{secrets.token_hex(4)}")
        folder.mkdir(mode=0o700)
        lock = lock_of(folder)
        assert lock is not None, "nobody else knows the name of this folder"
        try:
            for name in (layout.SEGMENTS, layout.INDEX):
                (folder / name).mkdir()
            write_file(folder / layout.TOKENIZER, tokenizer.content)
        except BaseException:  # the disk is full
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
            raise
        meta = _empty(tokenizer, seq_len=seq_len, fractions=fractions, loss_mask=loss_mask)
        return cls(
            folder, lock, meta, tokenizer,
            place=place, overwrite=overwrite, segment_tokens=segment_tokens,
        )  # fmt: skip

    @classmethod
    def append(cls, store: Path, *, segment_tokens: int = layout.SEGMENT_TOKENS) -> Self:
        """The writer of more users, or more of the same users, into the store at ``store``.

        Token files are never rewritten, and readers that have the store open keep the generation
        that they opened. One appender at a time: the store's folder is locked. The store gets a
        new ``store_id`` and content hash, as it is other data: a run that began before refuses to
        resume on it.

        Args:
            store: the store's place.
            segment_tokens: as in `create`.

        Raises:
            UseError: no store of this version is there, it lacks its user ids, or another process
                appends to it.
        """
        folder = store.absolute()
        read_meta(folder)
        lock = require_lock(folder)
        try:
            meta = read_meta(folder)
            UserStore.open(folder, fixed_graph=True).user_ids()
            clear(folder, meta)
            tokenizer = StoreTokenizer.load(folder / layout.TOKENIZER).with_end(meta.end_of_text_id)
            return cls(
                folder, lock, meta, tokenizer,
                place=folder, overwrite=False, segment_tokens=segment_tokens,
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
        *,
        place: Path,
        overwrite: bool,
        segment_tokens: int,
    ) -> None:
        self.place, self.tokenizer = place, tokenizer
        self._lock, self._overwrite = lock, overwrite
        is_new = meta.generation < 0
        self.known = None if is_new else index_folder(folder, meta).resolve()
        known = Known(self.known)
        first, size = meta.segments, segment_tokens
        super().__init__(folder, meta, known, first_segment=first, segment_tokens=size)

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
        old, store_id = self.meta, secrets.token_hex(16)
        kind = StateKind.APPENDED if old.states else StateKind.PREPARED
        index = merged(EMPTY if self.known is None else Index.read(self.known), self.written())
        meta = replace(
            old,
            store_id=store_id,
            sources=[*old.sources, source],
            drops=dict(sorted((Counter(old.drops) + tally.drops).items())),
            example_drops=dict(sorted((Counter(old.example_drops) + tally.example_drops).items())),
            segments=self.segments,
            ownership=ownership or old.ownership,
            states=(*old.states, State(id=store_id, kind=kind, segments=self.segments)),
        )
        new = [layout.segment_name(number) for number in range(old.segments, self.segments)]
        with held() as signals:  # between the two renames of `_move` no store is at its place
            self.meta = write_generation(
                self.folder, meta, index, segments=new, records_read=tally.records_read
            )
            if self.folder != self.place:
                self._move()
            signals.finished()
        return self.meta

    def _move(self) -> None:
        """Put the new store into its place, and the old one away."""
        place = self.place
        _require_free(place, overwrite=self._overwrite)
        if not place.exists():
            self.folder.rename(place)
            sync(place.parent)
            return
        old = place.with_name(f".{place.name}.old-{secrets.token_hex(4)}")
        lock = os.open(place, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until an append to the old store is done
            _keep_ledger(place, self.folder)
            place.rename(old)
        finally:
            os.close(lock)
        self.folder.rename(place)
        sync(place.parent)
        _keep_ledger(old, place)
        shutil.rmtree(old, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()
        if self.folder == self.place:
            clear(self.folder, self.meta)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def write_generation(
    folder: Path, meta: StoreMeta, index: Index, *, segments: list[str], records_read: int
) -> StoreMeta:
    """Write the next generation of a store, let it count, and delete what it does not name.

    Guarantee: killed at any moment, the store is of the generation before or of this one.

    Args:
        folder: of the store, which is locked.
        meta: its facts, as they were in generation, content hash, totals and files.
        index: of the new generation.
        segments: the folders of ``meta`` that are new.
        records_read: since the generation before; less than 0 for records that were taken out.
    """
    generation = meta.generation + 1
    place = f"{layout.INDEX}/{layout.segment_name(generation)}"
    shutil.rmtree(folder / place, ignore_errors=True)  # of a change that was killed
    index.write(folder / place)
    new_folders = [f"{layout.SEGMENTS}/{name}" for name in segments]
    named = {f"{layout.SEGMENTS}/{meta.segment_folder(n)}" for n in range(meta.segments)}
    kept = {".", *(named - {*new_folders})}
    files = {name: sums for name, sums in meta.files.items() if str(Path(name).parent) in kept}
    for one in (*new_folders, place):
        files |= seal(folder, one)
    new = replace(
        meta,
        generation=generation,
        content_sha256=index.content_hash(seq_len=meta.seq_len, loss_mask=meta.loss_mask),
        files=files,
    )
    new = replace(new, totals=_totals(folder, new, index, records_read))
    for changed, _, _ in os.walk(folder):
        sync(Path(changed))
    write_json(folder / layout.META, new.to_dict())
    clear(folder, new)
    return new


def _totals(folder: Path, meta: StoreMeta, index: Index, records_read: int) -> dict[str, Any]:
    """`StoreMeta.totals` of a new generation; ``meta`` holds those of the one before."""
    spans = index.spans
    tokens = np.zeros(len(spans["user"]), dtype=np.int64)
    for number in range(meta.segments):
        here = np.flatnonzero(spans["segment"] == number)
        offsets = Segment.open(folder, meta, number).offsets
        first = spans["start"][here]
        tokens[here] = offsets[first + spans["length"][here]] - offsets[first]
    splits = {}
    for split, code in layout.SPLIT_CODES.items():
        own = spans["split"] == code
        splits[str(split)] = {
            "users": len(np.unique(spans["user"][own])),
            "examples": int(spans["length"][own].sum()),
            "tokens": int(tokens[own].sum()),
        }
    return {
        "records_read": meta.totals["records_read"] + records_read,
        "records_stored": sum(index.records),
        "users": len(index.ids),
        "near_colliding_users": near_colliding(index.ids),
        "examples": int(spans["length"].sum()),
        "tokens": int(tokens.sum()),
        "splits": splits,
    }


def remove_leftovers(store: Path) -> None:
    """Remove what killed processes left in and beside a store: working files hold people's text.

    Call it under the store's lock.
    """
    clear(store, read_meta(store))
    _remove_abandoned(store.absolute())
    shutil.rmtree(records_folder(store.absolute()), ignore_errors=True)


def _require_free(out: Path, *, overwrite: bool) -> None:
    """`UseError` if a store may not be put at ``out``."""
    if not out.exists() and not out.is_symlink():
        return
    if not is_store(out):
        raise UseError(
            f"{out} exists and is not a user store, so it is left alone",
            hint="choose another place for the store",
        )
    if not overwrite:
        raise in_the_way(out, "a store")


def _keep_ledger(old: Path, new: Path) -> None:
    """Let a new store share the old one's privacy ledger, the same file on disk.

    The people whose data it is stay charged; a run that is writing to it loses nothing.
    """
    kept = [old / name for name in (layout.LEDGER, layout.LEDGER_PLACE, layout.PLACES)]
    for path in (*kept, *(old / layout.LEDGER_RUNS).glob("*")):
        place = new / path.relative_to(old)
        if path.exists() and not place.exists():
            if place.parent != new:
                operator_folder(place.parent)
            place.hardlink_to(path)
    sync(new)


def _remove_abandoned(place: Path) -> None:
    """Bring back a store that was moved aside and not yet replaced; remove what was half made."""
    for old in place.parent.glob(f".{place.name}.old-*"):
        if not place.exists():
            old.rename(place)
        else:
            _keep_ledger(old, place)
            shutil.rmtree(old, ignore_errors=True)
    for folder in place.parent.glob(f".{place.name}.partial-*"):
        lock = lock_of(folder)
        if lock is not None:  # else a living process has it
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _empty(
    tokenizer: StoreTokenizer, *, seq_len: int, fractions: tuple[float, float], loss_mask: bool
) -> StoreMeta:
    """The facts about a store of nobody, which a new store is an append to."""
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
        totals={"records_read": 0},
        generation=-1,
        segments=0,
        loss_mask=loss_mask,
        ownership={"rule": "single", "adjacency": "add-or-remove"},
        files={layout.TOKENIZER: {"bytes": len(tokenizer.content), "sha256": tokenizer.sha256}},
        revisions={},
        states=(),
    )
