"""Change a user store: all of it, or nothing. One writer for new stores, appends and erasures.

Every change writes what is new beside what is there, syncs it, and lets it count by one rename of
``meta.json``; a new store is written in a hidden folder ``.NAME.partial-…`` and renamed as a whole.
What the store does not name any more is deleted then, or after a kill by the next change. A store
that replaces another is the next generation in the same folder, of which nobody is in the one
before; so its privacy ledger stays where it is.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from userdp.core.errors import UseError
from userdp.core.files import in_the_way, sync, write_file, write_json
from userdp.data import meta as layout
from userdp.data.files import clear, ends_of, lock_of, locked, records_folder
from userdp.data.generation import CHAIN_BYTES, NOTHING, SPANS, Index, Segment, prolong
from userdp.data.meta import State, StateKind, StoreMeta, is_store, read_meta
from userdp.data.near_ids import near_colliding
from userdp.data.records import Tally
from userdp.data.scores import leave_out_rows
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.data.verify import seal


class StoreWriter:
    """Writes the examples of one user after another; see `create` and `append`.

    A context manager. The new store, or the new generation of the old one, appears in one rename
    when `finish` is done. Leaving the block before that leaves no store, or the old one.

    Attributes:
        place: of the store.
        folder: where it is written: its place, or a hidden one beside that.
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
            segment_tokens: a segment is written once it holds this many.

        Raises:
            UseError: something lies at ``out`` and ``overwrite`` is false, it is not a store, or
                another process changes it.
        """
        place = folder = out.absolute()
        _remove_abandoned(place)
        _require_free(place, overwrite=overwrite)
        with ExitStack() as undo:
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                folder = place.with_name(f".{place.name}.partial-{secrets.token_hex(4)}")
                folder.mkdir(mode=0o700)
                undo.callback(shutil.rmtree, folder, ignore_errors=True)
            undo.enter_context(locked(folder))
            with suppress(UseError):  # nothing is there yet, or a store of another version
                clear(folder, read_meta(folder))
            name, number = layout.TOKENIZER, _next_generation(folder)
            there = folder / name
            if there.exists() and there.read_bytes() != tokenizer.content:
                name = f"{name}.{number}"
            if not (folder / name).exists():
                write_file(folder / name, tokenizer.content)
            meta = StoreMeta(
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
                tokenizer=name,
                index="",
                segments=(),
                blocks_sha256="",
                loss_mask=loss_mask,
                ownership={"rule": "single", "adjacency": "add-or-remove"},
            )
            nobody = {one.name: np.zeros(0, one.type.to_pandas_dtype()) for one in SPANS}
            index = Index([], [], [], nobody)
            return cls(place, folder, meta, tokenizer, index, segment_tokens, undo.pop_all())

    @classmethod
    def append(cls, store: Path, *, segment_tokens: int = layout.SEGMENT_TOKENS) -> Self:
        """The writer of more users, or more of the same users, into the store at ``store``.

        Segments are never rewritten, and readers that have the store open keep the generation
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
        with ExitStack() as undo:
            undo.enter_context(locked(folder))
            opened = UserStore.open(folder, fixed_graph=True)
            meta, index = opened.meta, opened.index()
            clear(folder, meta)
            words = StoreTokenizer.load(opened.tokenizer_path).with_end(meta.end_of_text_id)
            return cls(folder, folder, meta, words, index, segment_tokens, undo.pop_all())

    def __init__(
        self,
        place: Path,
        folder: Path,
        meta: StoreMeta,
        tokenizer: StoreTokenizer,
        index: Index,
        segment_tokens: int,
        undo: ExitStack,
    ) -> None:
        self.place, self.folder, self.meta, self.tokenizer = place, folder, meta, tokenizer
        self._index, self._undo, self._segment_tokens = index, undo, segment_tokens
        self._number = _next_generation(folder)
        (folder / layout.SEGMENTS).mkdir(exist_ok=True)
        self._row = {user: row for row, user in enumerate(index.ids)}
        self._records, self._chains = list(index.records), list(map(bytearray, index.chains))
        self._spans: list[list[int]] = []
        self._segments: list[str] = []
        self._waiting: list[tuple[Any, ...]] = []  # tokens, lengths, targets of the next segment
        self._tokens = self._examples = 0  # of it

    def records_of(self, user: bytes) -> int:
        """Stored records of ``user`` so far, those that the store held before included."""
        row = self._row.get(user)
        return 0 if row is None else self._records[row]

    def write(
        self,
        user: bytes,
        split: Split,
        tokens: NDArray[Any],
        lengths: NDArray[np.int64],
        *,
        targets: NDArray[np.uint8] | None = None,
        records: int = 0,
    ) -> None:
        """Append examples to ``split`` of ``user``.

        Args:
            user: its id.
            split: one call per split and user is best: each may cost a span.
            tokens: flat, ids below the vocabulary size.
            lengths: int64 (examples,), of each example; their sum is ``len(tokens)``.
            targets: uint8, parallel to the tokens; if and only if the store has a loss mask.
            records: how many stored records these are.
        """
        if not len(lengths):
            return
        assert lengths.sum() == len(tokens), "lengths add up to the tokens"
        assert (targets is not None) is self.meta.loss_mask, "targets come with a loss mask alone"
        if self._tokens >= self._segment_tokens:
            self._close_segment()
        row = self._row.setdefault(user, len(self._row))
        if row == len(self._records):
            self._records.append(0)
            self._chains.append(bytearray(NOTHING))
        self._records[row] += records
        code = layout.SPLIT_CODES[split]
        part = slice(CHAIN_BYTES * code, CHAIN_BYTES * (code + 1))
        chain = self._chains[row]
        chain[part] = prolong(bytes(chain[part]), tokens, lengths, targets)
        here = [code, row, len(self.meta.segments) + len(self._segments)]
        if self._spans and self._spans[-1][:3] == here:  # as these lie behind it
            self._spans[-1][4] += len(lengths)
        else:
            self._spans.append([*here, self._examples, len(lengths)])
        self._waiting.append((tokens.astype(self.meta.token_dtype), lengths, targets))
        self._tokens += len(tokens)
        self._examples += len(lengths)

    def finish(
        self, *, source: dict[str, Any], tally: Tally, ownership: dict[str, Any] | None = None
    ) -> StoreMeta:
        """Write the new generation, sync, and let it count.

        Args:
            source: what the source says of itself.
            tally: its books must balance.
            ownership: replaces the store's (see `StoreMeta`); None: it stays.
        """
        tally.balance()
        self._close_segment()
        old, store_id = self.meta, secrets.token_hex(16)
        new = np.array(self._spans, dtype=np.int64).reshape(-1, len(SPANS)).T
        spans = {
            name: np.append(before, column.astype(before.dtype))
            for (name, before), column in zip(self._index.spans.items(), new, strict=True)
        }
        chains = [bytes(one) for one in self._chains]
        segments = (*old.segments, *self._segments)
        kind = StateKind.APPENDED if old.states else StateKind.PREPARED
        state = State(id=store_id, kind=kind, segments=len(segments))
        meta = replace(
            old,
            store_id=store_id,
            sources=[*old.sources, source],
            drops=dict(sorted((Counter(old.drops) + tally.drops).items())),
            example_drops=dict(sorted((Counter(old.example_drops) + tally.example_drops).items())),
            segments=segments,
            ownership=ownership or old.ownership,
            states=(*old.states, state),
        )
        index = Index(list(self._row), self._records, chains, spans).ordered()
        self.meta = _write_generation(
            self.folder, self._number, meta, index, records_read=tally.records_read
        )
        if self.folder != self.place:
            _require_free(self.place, overwrite=False)
            self.folder.rename(self.place)
            sync(self.place.parent)
        return self.meta

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._undo, suppress(UseError):  # a store of another version, or none yet
            clear(self.folder, read_meta(self.folder))

    def _close_segment(self) -> None:
        if not self._waiting:
            return
        name = _segment_name(self._number, len(self._segments))
        tokens, lengths, targets = zip(*self._waiting, strict=True)
        marks = np.concatenate(targets) if self.meta.loss_mask else None
        offsets = ends_of(np.concatenate(lengths))
        Segment(np.concatenate(tokens), offsets, marks).write(self.folder / name)
        self._segments.append(name)
        self._waiting.clear()
        self._tokens = self._examples = 0


def erase_user(
    folder: Path, row: int, *, state: str, remove: Sequence[Path], scores: Sequence[Path]
) -> StoreMeta:
    """Take the user at ``row`` out of the store and off the disk; return the store's new facts.

    What was made of their text elsewhere goes first, and can be removed twice. Then the generation
    without them is written, and one rename lets it count.

    Guarantee: when this returns, the store is, to its content hash, the one that would have been
    prepared from the records of all others. Killed at any moment, it leaves the store with the
    user, or without; what it does not name any more is then deleted by the next `UserStore.open`.

    Call it under the store's lock (`userdp.data.files.locked`).

    Args:
        folder: of the store.
        row: of the user in the whole store.
        state: the id of the store's new state; random.
        remove: folders of runs made of people's text that are to go: weights, and what an audit
            kept.
        scores: files of scores of this store, which lose the user's rows.
    """
    meta = read_meta(folder)
    number, index = _next_generation(folder), Index.read(folder / meta.index)
    others = index.without(row)
    for place in remove:
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
    rows, now = _rows_of_scores(index, row), others.content_hash(meta)
    for place in scores:
        leave_out_rows(place, rows, was=meta.content_sha256, now=now)
    segments, begins = list(meta.segments), others.spans["start"].copy()
    own = np.unique(index.spans["segment"][index.spans["user"] == row]).tolist()
    for new, old in enumerate(own):
        here = np.flatnonzero(others.spans["segment"] == old)
        here = here[np.argsort(begins[here], kind="stable")]
        lengths = others.spans["length"][here]
        segments[old] = _segment_name(number, new)
        left = Segment.open(folder, meta, old).only(begins[here], lengths)
        left.write(folder / segments[old])
        begins[here] = ends_of(lengths)[:-1]
    erased = State(id=state, kind=StateKind.ERASED, segments=len(segments))
    return _write_generation(
        folder,
        number,
        replace(meta, segments=tuple(segments), states=(*meta.states, erased)),
        replace(others, spans={**others.spans, "start": begins}),
        records_read=-index.records[row],
    )


def _rows_of_scores(index: Index, row: int) -> dict[str, list[int]]:
    """Where a user's examples stand among those of each split, and how many they are."""
    spans = index.spans
    found = {}
    for split, code in layout.SPLIT_CODES.items():
        lengths, user = (spans[name][spans["split"] == code] for name in ("length", "user"))
        found[str(split)] = [int(lengths[user < row].sum()), int(lengths[user == row].sum())]
    return found


def _write_generation(
    folder: Path, number: int, meta: StoreMeta, index: Index, *, records_read: int
) -> StoreMeta:
    """Write the next generation of a store, let it count, and delete what it does not name.

    Guarantee: killed at any moment, the store is of the generation before or of this one.

    Args:
        folder: of the store, which is locked.
        number: of the generation.
        meta: its facts; ``index`` and totals are those of the generation before.
        index: of the new generation.
        records_read: since the generation before; less than 0 for records that were taken out.
    """
    place = f"{layout.INDEX}/{number:05d}"
    index.write(folder / place)
    meta = replace(
        meta,
        index=place,
        content_sha256=index.content_hash(meta),
        totals=_totals(folder, meta, index, records_read),
        blocks_sha256=seal(folder, meta, place),
    )
    for changed, _, _ in os.walk(folder):
        sync(Path(changed))
    write_json(folder / layout.META, meta.to_dict())
    clear(folder, meta)
    return meta


def _totals(folder: Path, meta: StoreMeta, index: Index, records_read: int) -> dict[str, Any]:
    """`StoreMeta.totals` of a new generation; ``meta`` holds those of the one before."""
    spans = index.spans
    tokens = np.zeros(len(spans["user"]), dtype=np.int64)
    for number in range(len(meta.segments)):
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


def _next_generation(folder: Path) -> int:
    """The number of a generation of which nothing is in a store's folder yet."""
    there = [*folder.glob(f"{layout.INDEX}/[0-9]*"), *folder.glob(f"{layout.SEGMENTS}/[0-9]*")]
    return 1 + max((int(one.name[:5]) for one in there), default=-1)


def _segment_name(generation: int, number: int) -> str:
    return f"{layout.SEGMENTS}/{generation:05d}-{number:05d}.arrow"


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
