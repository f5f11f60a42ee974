"""Write a user store: all of it, or nothing. A new store is an append to an empty one.

A new store is written into a hidden folder ``.NAME.partial-…`` beside its place, and renamed. One
that replaces another is the next generation in the same folder, of which nobody is in the one
before; so its privacy ledger stays where it is.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections import Counter
from contextlib import suppress
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
from userdp.files import in_the_way, sync, write_file, write_json


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
            overwrite: replace the store that lies at ``out``; its privacy ledger stays, since the
                people stay charged for what was released.
            segment_tokens: a new segment begins once one holds this many.

        Raises:
            UseError: something lies at ``out`` and ``overwrite`` is false, it is not a store, or
                another process changes it.
        """
        place = out.absolute()
        _remove_abandoned(place)
        _require_free(place, overwrite=overwrite)
        folder = place
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            folder = place.with_name(f".{place.name}.partial-{secrets.token_hex(4)}")
            folder.mkdir(mode=0o700)
        lock = require_lock(folder)
        try:
            with suppress(UseError):  # nothing is there yet, or a store of another version
                clear(folder, read_meta(folder))
            meta = _of_nobody(folder, tokenizer, seq_len, fractions, loss_mask)
            if not (folder / meta.tokenizer).exists():
                write_file(folder / meta.tokenizer, tokenizer.content)
        except BaseException:  # the disk is full
            if folder != place:
                shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
            raise
        return cls(folder, lock, meta, tokenizer, place, known=None, segment_tokens=segment_tokens)

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
            opened = UserStore.open(folder, fixed_graph=True)
            opened.user_ids()
            meta = opened.meta
            clear(folder, meta)
            words = StoreTokenizer.load(opened.tokenizer_path).with_end(meta.end_of_text_id)
            known = index_folder(folder, meta).resolve()
            return cls(
                folder, lock, meta, words, folder, known=known, segment_tokens=segment_tokens
            )
        except BaseException:
            os.close(lock)
            raise

    def __init__(
        self,
        folder: Path,
        lock: int,
        meta: StoreMeta,
        tokenizer: StoreTokenizer,
        place: Path,
        *,
        known: Path | None,
        segment_tokens: int,
    ) -> None:
        self.place, self.tokenizer, self.known = place, tokenizer, known
        self._lock = lock
        super().__init__(
            folder, meta, Known(known), first_segment=meta.segments, segment_tokens=segment_tokens
        )

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
            revisions={n: r for n, r in old.revisions.items() if int(n) < self.segments},
            ownership=ownership or old.ownership,
            states=(*old.states, State(id=store_id, kind=kind, segments=self.segments)),
        )
        new = [meta.segment_folder(number) for number in range(old.segments, self.segments)]
        self.meta = write_generation(
            self.folder, meta, index, segments=new, records_read=tally.records_read
        )
        if self.folder != self.place:
            _require_free(self.place, overwrite=False)
            self.folder.rename(self.place)
            sync(self.place.parent)
        return self.meta

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()
        if self.folder != self.place:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            with suppress(UseError):  # a store of another version, which was to be replaced
                clear(self.folder, read_meta(self.folder))
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


def _remove_abandoned(place: Path) -> None:
    """Remove new stores that were begun for ``place`` and are not being written any more."""
    for folder in place.parent.glob(f".{place.name}.partial-*"):
        lock = lock_of(folder)
        if lock is not None:  # else a living process has it
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _of_nobody(
    folder: Path,
    tokenizer: StoreTokenizer,
    seq_len: int,
    fractions: tuple[float, float],
    loss_mask: bool,
) -> StoreMeta:
    """The facts about a store of nobody, which a new store is an append to.

    No file that it will name is there yet: generation and revisions go on from what ``folder``
    holds, and a tokenizer that differs from the one there has another name.
    """
    names: dict[str, list[str]] = {}
    for name in (layout.SEGMENTS, layout.INDEX):
        (folder / name).mkdir(exist_ok=True)
        names[name] = sorted(one.name for one in (folder / name).iterdir())
    generation = max((int(one) for one in names[layout.INDEX]), default=-1)
    file = layout.TOKENIZER
    if (folder / file).exists() and (folder / file).read_bytes() != tokenizer.content:
        file = f"{layout.TOKENIZER}.{generation + 1}"
    revisions: dict[str, int] = {}
    for one in names[layout.SEGMENTS]:
        number, _, revision = one.partition(".")
        number = str(int(number))
        revisions[number] = max(revisions.get(number, 0), int(revision or 0) + 1)
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
        generation=generation,
        segments=0,
        loss_mask=loss_mask,
        ownership={"rule": "single", "adjacency": "add-or-remove"},
        files={file: {"bytes": len(tokenizer.content), "sha256": tokenizer.sha256}},
        revisions=revisions,
    )
