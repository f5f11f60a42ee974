"""Change a user store: all of it, or nothing. One way for new stores, appends and erasures.

Every change writes the next generation beside the one that counts, syncs it, and lets it count by
one rename of ``meta.json`` (`commit`); a new store is written in a hidden folder and renamed as a
whole. What the store does not name any more goes when the change ends, or after a kill with the
next one. A store that replaces another is the next generation in the same folder, of which nobody
is in the one before; so its privacy ledger stays where it is.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from userdp.core.errors import UseError
from userdp.core.files import in_the_way, sweep, sync, whole_folder, write_file, write_json
from userdp.data import meta as layout
from userdp.data.arrow_files import ends_of
from userdp.data.contents import CHAIN_BYTES, NOTHING, SPANS, Index, Segment, prolong
from userdp.data.integrity import seal
from userdp.data.meta import State, StateKind, StoreMeta, is_store, read_meta
from userdp.data.records import Tally
from userdp.data.splits import Split
from userdp.data.store_folder import changing
from userdp.data.tokenize import StoreTokenizer
from userdp.data.user_store import UserStore


class StoreWriter:
    """Writes the examples of one user after another; see `create` and `append`.

    Both are context managers. The new store, or the new generation of the old one, is there when
    the block ends after `finish`. Leaving the block before leaves no store, or the old one.

    Attributes:
        folder: that is written: the store's own, or the hidden one of a new store.
        meta: of the store that is added to, empty for a new one; after `finish`, of what was
            written.
        tokenizer: of the store.
    """

    @classmethod
    @contextmanager
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
    ) -> Iterator[Self]:
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
        place = out.absolute()
        _require_free(place, overwrite=overwrite)
        meta = StoreMeta(
            seq_len=seq_len,
            vocab_size=tokenizer.vocab_size,
            end_of_text_id=tokenizer.end_of_text_id,
            tokenizer_sha256=tokenizer.sha256,
            held_out_users=fractions[0],
            held_out_examples=fractions[1],
            loss_mask=loss_mask,
        )
        if place.exists():
            with changing(place):
                yield cls(place, meta, tokenizer, Index.empty(), segment_tokens)
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(place, mode=0o700) as folder:
            writer = cls(folder, meta, tokenizer, Index.empty(), segment_tokens)
            yield writer
            assert writer.meta.states, "a writer finishes"
            _require_free(place, overwrite=False)

    @classmethod
    @contextmanager
    def append(cls, store: Path, *, segment_tokens: int = layout.SEGMENT_TOKENS) -> Iterator[Self]:
        """The writer of more users, or more of the same users, into the store at ``store``.

        Segments are never rewritten, and readers that have the store open keep the generation
        that they opened. One appender at a time: the store's folder is locked. The store gets a
        new ``store_id`` and content hash, as it is other data: a run that began before refuses to
        resume on it.

        Args:
            store: the store's place.
            segment_tokens: as in `create`.

        Raises:
            UseError: no store of this version is there, or another process changes it.
        """
        folder = store.absolute()
        read_meta(folder)
        with changing(folder):
            opened = UserStore.open(folder, fixed_graph=True)
            meta, index = opened.meta, Index.read(folder / opened.meta.index)
            words = StoreTokenizer.load(opened.tokenizer_path).with_end(meta.end_of_text_id)
            yield cls(folder, meta, words, index, segment_tokens)

    def __init__(
        self,
        folder: Path,
        meta: StoreMeta,
        tokenizer: StoreTokenizer,
        index: Index,
        segment_tokens: int,
    ) -> None:
        self.folder, self.meta, self.tokenizer = folder, meta, tokenizer
        self._index, self._segment_tokens = index, segment_tokens
        self._row = {user: row for row, user in enumerate(index.ids)}
        self._records, self._chains = list(index.records), list(map(bytearray, index.chains))
        self._spans: list[list[int]] = []
        self._segments = list(meta.segments)
        self._waiting: list[tuple[Any, ...]] = []  # tokens, lengths, targets of the next segment
        self._tokens = self._examples = 0  # of it

    def is_new(self, user: bytes) -> bool:
        """Whether the store held nothing of ``user`` before this change."""
        return self._row.get(user, len(self._row)) >= len(self._index.ids)

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
        here, added = [code, row, len(self._segments)], (len(lengths), len(tokens))
        if self._spans and self._spans[-1][:3] == here:  # as these lie behind it
            self._spans[-1][4:] = map(sum, zip(self._spans[-1][4:], added, strict=True))
        else:
            self._spans.append([*here, self._examples, *added])
        self._waiting.append((tokens.astype(self.meta.token_dtype), lengths, targets))
        self._examples += len(lengths)
        self._tokens += len(tokens)

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
        kind = StateKind.APPENDED if old.states else StateKind.PREPARED
        meta = replace(
            old,
            store_id=store_id,
            sources=(*old.sources, source),
            drops=dict(sorted((Counter(old.drops) + tally.drops).items())),
            example_drops=dict(sorted((Counter(old.example_drops) + tally.example_drops).items())),
            segments=tuple(self._segments),
            ownership=ownership or old.ownership,
            states=(*old.states, State(id=store_id, kind=kind, segments=len(self._segments))),
        )
        new = np.array(self._spans, dtype=np.int64).reshape(-1, len(SPANS)).T
        spans = {
            name: np.append(before, column.astype(before.dtype))
            for (name, before), column in zip(self._index.spans.items(), new, strict=True)
        }
        index = Index(list(self._row), self._records, list(map(bytes, self._chains)), spans)
        ordered = index.only(sorted(range(len(index.ids)), key=index.ids.__getitem__))
        self.meta = commit(
            self.folder, meta, ordered, self.tokenizer.content, read=tally.records_read
        )
        return self.meta

    def _close_segment(self) -> None:
        if not self._waiting:
            return
        tokens, lengths, targets = zip(*self._waiting, strict=True)
        marks = np.concatenate(targets) if self.meta.loss_mask else None
        offsets = ends_of(np.concatenate(lengths))
        segment = Segment(np.concatenate(tokens), offsets, marks)
        self._segments.append(_write_segment(self.folder, segment, self._segments))
        self._waiting.clear()
        self._tokens = self._examples = 0


def erase_user(store: Path, row: int, *, remove: Sequence[Path]) -> StoreMeta:
    """Write the generation without the user at ``row``, and return the store's new facts.

    What was made of their text elsewhere, working files of killed runs too, goes first, and can be
    removed twice. Then the generation is written, and one rename lets it count.

    Guarantee: the store is then, to its content hash, the one that would have been prepared from
    the records of all others. Killed at any moment, it holds the user or not; what it does not name
    any more goes with the end of `changing`, under which this is called, or is deleted by the next
    `UserStore.open`.

    Args:
        store: its folder.
        row: of the user in the whole store.
        remove: what was made of people's text elsewhere and is to go: weights, scores, and what an
            audit kept.
    """
    meta, place = read_meta(store), store.absolute()
    index = Index.read(store / meta.index)
    others = index.only([one for one in range(len(index.ids)) if one != row])
    sweep(place.parent, place.name)
    for path in remove:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    segments, begins = list(meta.segments), others.spans["start"].copy()
    for old in np.unique(index.spans["segment"][index.spans["user"] == row]).tolist():
        here = np.flatnonzero(others.spans["segment"] == old)
        here = here[np.argsort(begins[here], kind="stable")]
        lengths = others.spans["length"][here]
        left = Segment.open(store, meta, old).only(begins[here], lengths)
        segments[old] = _write_segment(store, left, segments)
        begins[here] = ends_of(lengths)[:-1]
    erased = State(id=secrets.token_hex(16), kind=StateKind.ERASED, segments=len(segments))
    return commit(
        store,
        replace(meta, segments=tuple(segments), states=(*meta.states, erased)),
        replace(others, spans={**others.spans, "start": begins}),
        (store / meta.index / layout.TOKENIZER).read_bytes(),
        read=-index.records[row],
    )


def commit(store: Path, meta: StoreMeta, index: Index, tokenizer: bytes, *, read: int) -> StoreMeta:
    """Write the next generation of a store and let it count; return its facts.

    Guarantee: killed at any moment, the store is of the generation before or of this one.

    Args:
        store: its folder, which is locked or hidden.
        meta: its facts, with the totals of the generation before.
        index: of the new generation.
        tokenizer: the bytes of its tokenizer.json.
        read: records read since the generation before; less than 0 for those taken out.
    """
    before = meta.generation
    meta = replace(meta, generation=_free(store, layout.index_at, before + 1))
    index.write(store / meta.index)
    write_file(store / meta.index / layout.TOKENIZER, tokenizer)
    meta = replace(
        meta,
        content_sha256=index.content_hash(meta),
        totals={"records_read": meta.totals["records_read"] + read, **index.totals()},
        blocks_sha256=seal(store, meta, before=before),
    )
    for changed, _, _ in os.walk(store):
        sync(Path(changed))
    write_json(store / layout.META, meta.to_dict())
    return meta


def _write_segment(store: Path, segment: Segment, known: Sequence[int]) -> int:
    """Write a segment; its number, which none of the ``known`` has, nor one of a killed run."""
    (store / layout.SEGMENTS).mkdir(exist_ok=True)
    number = _free(store, layout.segment_at, 1 + max(known, default=-1))
    segment.write(store / layout.segment_at(number))
    return number


def _free(store: Path, name: Callable[[int], str], first: int) -> int:
    """The first number from ``first`` on that is above those of all that lies in the store.

    So a generation that replaces others is never taken for one of them.
    """
    there = (store / name(0)).parent.glob("[0-9]*")
    return max([first, *(1 + int(one.stem) for one in there)])


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
