"""Records ordered by user to examples: tokenized, split, cut, and written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from userdp.data.columns import Columns, objects
from userdp.data.cutting import Cut, cut_records
from userdp.data.hashing import user_hash
from userdp.data.meta import StoreMeta
from userdp.data.records import TARGET, Drop, ExampleDrop, Record, Tally
from userdp.data.segments import SegmentWriter
from userdp.data.splits import (
    FIRST_PART_LOOK,
    Split,
    SplitRule,
    first_part,
    held_out_records,
    is_held_out_user,
)
from userdp.data.tokenize import StoreTokenizer


class _Encoded(NamedTuple):
    """Consecutive records with their tokens.

    Args:
        users: large_binary (records,).
        held_out: bool (records,), by the source's own split.
        tokens: flat, of the store's type.
        sizes: int64 (records,), tokens of each.
        targets: uint8, parallel to the tokens; None without a loss mask.
    """

    users: pa.LargeBinaryArray
    held_out: NDArray[np.bool_]
    tokens: NDArray[Any]
    sizes: NDArray[np.int64]
    targets: NDArray[np.uint8] | None

    def part(self, begin: int, end: int) -> _Encoded:
        """Records ``begin`` to ``end``."""
        first = int(self.sizes[:begin].sum())
        tokens = slice(first, first + int(self.sizes[begin:end].sum()))
        return _Encoded(
            self.users.slice(begin, end - begin),
            self.held_out[begin:end],
            self.tokens[tokens],
            self.sizes[begin:end],
            None if self.targets is None else self.targets[tokens],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What becomes of a user's records, but for the tokenizer; the same in every process.

    Args:
        seq_len, loss_mask, token_dtype: of the store.
        fractions: of held-out users and held-out examples.
        rule: how a training user's records are split.
        one_per_record: keep each record's first example alone (see `ownership`).
    """

    seq_len: int
    loss_mask: bool
    token_dtype: str
    fractions: tuple[float, float]
    rule: SplitRule
    one_per_record: bool

    @classmethod
    def of(cls, meta: StoreMeta, *, rule: SplitRule, one_per_record: bool) -> Recipe:
        """The recipe of a store."""
        return cls(
            seq_len=meta.seq_len,
            loss_mask=meta.loss_mask,
            token_dtype=meta.token_dtype,
            fractions=(meta.held_out_users, meta.held_out_examples),
            rule=rule,
            one_per_record=one_per_record,
        )


class Examples:
    """Takes records that come ordered by user, and writes each user's examples.

    `encode` may run in another thread, ahead of `add`.

    Guarantee (invariant 11): what becomes of a record depends on its user's records, the
    tokenizer and a per-user hash. Memory is bounded by a batch, and by `FIRST_PART_LOOK` records
    under the rule ``FIRST_PART``.

    Args:
        writer: of segments; it has a loss mask if records have pieces.
        tokenizer: of the store.
        recipe: see there.
        tally: the books.
        at_segment: is told when a segment ends with a user, of how many records since the last.
    """

    def __init__(
        self,
        writer: SegmentWriter,
        *,
        tokenizer: StoreTokenizer,
        recipe: Recipe,
        tally: Tally,
        at_segment: Callable[[int], None] | None = None,
    ) -> None:
        self._writer, self._tokenizer, self._recipe = writer, tokenizer, recipe
        self._tally, self._at_segment = tally, at_segment
        self._user = b""  # nobody: an id is never empty
        self._waiting: list[_Encoded] = []
        self._held_back: list[Cut] = []
        self._since = 0  # records taken in since a segment ended with a user

    def encode(self, block: Columns) -> _Encoded:
        """Tokenize a block, for `add`."""
        targets: NDArray[np.uint8] | None = None
        if self._recipe.loss_mask:
            both = [self._encode_pieces(record) for record in block]
            sizes = np.array([len(ids) for ids, _ in both], dtype=np.int64)
            tokens = np.array([i for ids, _ in both for i in ids], dtype=self._recipe.token_dtype)
            targets = np.array([m for _, marks in both for m in marks], dtype=np.uint8)
        else:
            texts = objects(block.texts.cast(pa.large_string()))
            tokens, sizes = self._tokenizer.encode_flat(texts)
        return _Encoded(block.users, block.held_out, tokens, sizes, targets)

    def add(self, encoded: _Encoded) -> None:
        """Take the next records in."""
        starts = _run_starts(encoded.users)
        if len(encoded.tokens) > self._writer.room:  # a segment ends with a user, if one ends here
            goes_on = not self._user or encoded.users[0].as_py() == self._user
            borders = starts[1:] if goes_on else starts
            if len(borders):
                self._add(encoded.part(0, int(borders[0])))
                self.flush()
                self._writer.close()
                if self._at_segment is not None:
                    self._at_segment(self._since)
                self._since = 0
                encoded = encoded.part(int(borders[0]), len(encoded.users))
        self._add(encoded)

    def _add(self, encoded: _Encoded) -> None:
        users = encoded.users
        if not len(users):
            return
        self._since += len(users)
        starts = _run_starts(users)
        ends = np.append(starts[1:], len(users))
        names = objects(users.take(pa.array(starts)))
        if self._recipe.rule is SplitRule.FIRST_PART:
            for user, begin, end in zip(names, starts.tolist(), ends.tolist(), strict=True):
                self._enter(user)
                self._wait(encoded.part(begin, end))
            return
        # Cutting looks at one record at a time, so all users' are cut by one call.
        cut = self._cut(encoded)
        bounds = np.searchsorted(cut.source, np.append(starts, len(users))).tolist()
        for user, part in zip(names, cut.parts(bounds), strict=True):
            self._enter(user)
            if part.records:
                self._store(part, encoded.held_out[part.source])

    def flush(self) -> None:
        """Write what is left of the last user."""
        if self._waiting:
            self._decide()
        for cut in self._held_back:
            self._write(Split.HELD_OUT_EXAMPLES, cut)
        self._held_back.clear()

    def _enter(self, user: bytes) -> None:
        if user != self._user:
            self.flush()
            self._begin(user)

    def _begin(self, user: bytes) -> None:
        self._user = user
        self._hash = user_hash(user)
        self._held_out_user = is_held_out_user(self._hash, self._recipe.fractions[0])
        self._stored = self._writer.records_before(user)
        self._begun = False
        self._decided = False

    def _wait(self, run: _Encoded) -> None:
        """Under ``FIRST_PART``: hold records back until the size of the part is known."""
        if self._decided:
            self._take(run, held_out=0)
            return
        self._waiting.append(run)
        if sum(len(part.sizes) for part in self._waiting) >= FIRST_PART_LOOK:
            self._decide()

    def _decide(self) -> None:
        run, self._waiting, self._decided = _joined(self._waiting), [], True
        if len(run.sizes) == 1 and self._stored == 0:
            self._tally.drop(Drop.SINGLETON)
            return
        # Records that an append brings to a known user are trained on: the first part is there.
        self._take(run, held_out=0 if self._stored else first_part(len(run.sizes)))

    def _take(self, run: _Encoded, *, held_out: int) -> None:
        """Cut and write consecutive records of one user, the first ``held_out`` held out."""
        cut = self._cut(run)
        if cut.records:
            self._store(cut, run.held_out[cut.source] | (cut.source < held_out))

    def _cut(self, run: _Encoded) -> Cut:
        """The examples of consecutive records, whoever's they are; what is left out is counted."""
        tally, sizes, recipe = self._tally, run.sizes, self._recipe
        cut = cut_records(run.tokens, sizes, recipe.seq_len, run.targets)
        tally.drop(Drop.TOO_SHORT, len(sizes) - cut.records)
        rest = int(np.count_nonzero((sizes % recipe.seq_len == 1) & (sizes > 1)))
        tally.drop_examples(ExampleDrop.TOO_SHORT, rest)
        if recipe.one_per_record:
            whole, cut = cut, cut.first_of_each()
            tally.drop_examples(ExampleDrop.ONE_PER_RECORD, whole.examples - cut.examples)
        if recipe.loss_mask:
            whole, cut = cut, cut.with_targets()
            tally.drop_examples(ExampleDrop.NO_TARGET, whole.examples - cut.examples)
            tally.drop(Drop.NO_ANSWER, whole.records - cut.records)
        return cut

    def _store(self, cut: Cut, held_out: NDArray[np.bool_]) -> None:
        """Write records of the present user, ``held_out`` of them held out by their source."""
        if not self._begun:
            self._writer.user(self._user)
            self._begun = True
        first = self._stored
        self._stored += cut.records
        self._tally.store(cut.records)
        if self._held_out_user:
            self._write(Split.HELD_OUT_USERS, cut)
            return
        recipe = self._recipe
        by_hash = recipe.fractions[1] if recipe.rule is SplitRule.HASH else 0.0
        held_out = held_out | held_out_records(self._hash, first, cut.records, fraction=by_hash)
        if not held_out.all():
            self._write(Split.TRAIN, cut.only(~held_out))
        if held_out.any():
            # Written last, so that a user's training examples lie together.
            self._held_back.append(cut.only(held_out))

    def _write(self, split: Split, cut: Cut) -> None:
        self._writer.write(split, cut.tokens, cut.lengths, targets=cut.targets, records=cut.records)

    def _encode_pieces(self, record: Record) -> tuple[list[int], list[int]]:
        text = record.text.decode()
        pieces = record.pieces if record.pieces is not None else ((len(text), TARGET),)
        ids: list[int] = []
        marks: list[int] = []
        for kind, content in _contents(text, pieces):
            new = self._tokenizer.encode_piece(content, kind=kind)
            ids += new
            marks += [kind & TARGET] * len(new)
        end = self._tokenizer.end_of_text_id
        if end is not None and (not ids or ids[-1] != end):
            ids.append(end)
            marks.append(pieces[-1][1] & TARGET if pieces else 0)
        return ids, marks


def _run_starts(users: pa.LargeBinaryArray) -> NDArray[np.int64]:
    """Where each user's records begin; nowhere for no records."""
    if not len(users):
        return np.zeros(0, dtype=np.int64)
    other = pc.not_equal(users.slice(1), users.slice(0, len(users) - 1))
    return np.append(0, np.flatnonzero(other.to_numpy(zero_copy_only=False)) + 1)


def _joined(parts: list[_Encoded]) -> _Encoded:
    if len(parts) == 1:
        return parts[0]
    targets = [part.targets for part in parts if part.targets is not None]
    return _Encoded(
        pa.concat_arrays([part.users for part in parts]),
        np.concatenate([part.held_out for part in parts]),
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.sizes for part in parts]),
        np.concatenate(targets) if targets else None,
    )


def _contents(text: str, pieces: Sequence[tuple[int, int]]) -> Iterator[tuple[int, str]]:
    begin = 0
    for end, kind in pieces:
        if end > begin:
            yield kind, text[begin:end]
        begin = end
