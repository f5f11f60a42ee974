"""Records ordered by user to examples: tokenized, split, cut, and written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from userdp.data import format as layout
from userdp.data.body import Body
from userdp.data.hashing import user_hash
from userdp.data.records import TARGET, Drop, ExampleDrop, Record, Tally
from userdp.data.splits import (
    FIRST_PART_LOOK,
    Split,
    SplitRule,
    first_part,
    is_held_out_user,
    record_split,
)
from userdp.data.tokenize import StoreTokenizer


class Writer(Protocol):
    """Where examples go: `StoreWriter` and `StoreAppender`."""

    @property
    def body(self) -> Body: ...
    @property
    def loss_mask(self) -> bool: ...


class Examples:
    """Takes records that come ordered by user, and writes each user's examples.

    Guarantee (invariant 11): what becomes of a record depends on its user's records, the
    tokenizer and a per-user hash. Memory is bounded by a batch, and by `FIRST_PART_LOOK` records
    under the rule ``FIRST_PART``.

    Args:
        writer: its store has a loss mask if records have pieces.
        tokenizer: of the store.
        seq_len: most tokens of an example.
        fractions: of held-out users and held-out records.
        rule: how a training user's records are split.
        one_per_record: keep each record's first example alone (see `ownership`).
        tally: the books.
    """

    def __init__(
        self,
        writer: Writer,
        tokenizer: StoreTokenizer,
        *,
        seq_len: int,
        fractions: tuple[float, float],
        rule: SplitRule,
        one_per_record: bool,
        tally: Tally,
    ) -> None:
        self._body = writer.body
        self._loss_mask = writer.loss_mask
        self._tokenizer = tokenizer
        self._seq_len = seq_len
        self._fractions = fractions
        self._rule = rule
        self._one_per_record = one_per_record
        self._tally = tally
        self._dtype = np.dtype(tokenizer.dtype)
        self._user: bytes | None = None
        self._waiting: list[tuple[Record, list[int], list[int] | None]] = []
        self._held_back: list[_Piece] = []

    def add(self, batch: list[Record]) -> None:
        """Take the next records in."""
        encoded = zip(batch, *self._encode(batch), strict=True)
        for user, run in groupby(encoded, key=lambda item: item[0].user):
            if user != self._user:
                self.flush()
                self._begin(user)
            if self._rule is SplitRule.FIRST_PART:
                self._wait(list(run))
            else:
                self._take(list(run), held_out=0)

    def flush(self) -> None:
        """Write what is left of the last user."""
        if self._waiting:
            self._decide()
        for piece in self._held_back:
            self._write(Split.HELD_OUT_EXAMPLES, piece)
        self._held_back.clear()

    def _begin(self, user: bytes) -> None:
        self._user = user
        self._hash = user_hash(user)
        self._held_out_user = is_held_out_user(self._hash, self._fractions[0])
        self._stored = self._body.records_before(user)
        self._begun = False
        self._decided = False

    def _wait(self, run: list[_Encoded]) -> None:
        """Under ``FIRST_PART``: hold records back until the size of the part is known."""
        if self._decided:
            self._take(run, held_out=0)
            return
        self._waiting += run
        if len(self._waiting) >= FIRST_PART_LOOK:
            self._decide()

    def _decide(self) -> None:
        run, self._waiting, self._decided = self._waiting, [], True
        if len(run) == 1 and self._stored == 0:
            self._tally.drop(Drop.SINGLETON)
            return
        # Records that an append brings to a known user are trained on: the first part is there.
        self._take(run, held_out=0 if self._stored else first_part(len(run)))

    def _take(self, run: list[_Encoded], *, held_out: int) -> None:
        """Cut and write consecutive records of one user, the first ``held_out`` held out."""
        sizes = np.array([len(ids) for _, ids, _ in run], dtype=np.int64)
        tokens = np.fromiter(
            chain.from_iterable(ids for _, ids, _ in run), self._dtype, int(sizes.sum())
        )
        piece = cut_records(tokens, sizes, self._seq_len)
        if self._loss_mask:
            marks = (m if m is not None else [1] * len(ids) for _, ids, m in run)
            targets = np.fromiter(chain.from_iterable(marks), np.uint8, len(tokens))
            piece.targets = targets[piece.kept]
        self._count_short(piece, sizes)
        if self._one_per_record:
            kept, before = piece.first_of_each(), piece.examples
            piece = kept
            self._tally.drop_examples(ExampleDrop.ONE_PER_RECORD, before - piece.examples)
        if self._loss_mask:
            before = piece.examples
            lost = piece.drop_without_target()
            self._tally.drop_examples(ExampleDrop.NO_TARGET, before - piece.examples)
            self._tally.drop(Drop.NO_ANSWER, lost)
        if piece.records == 0:
            return
        if not self._begun:
            self._body.user(self._hash_owner())
            self._begun = True
        codes = self._splits([run[i][0] for i in piece.source.tolist()], piece.source < held_out)
        self._stored += piece.records
        self._tally.store(piece.records)
        for split, code in layout.SPLIT_CODES.items():
            part = piece.only(codes == code)
            if part.records and split is Split.HELD_OUT_EXAMPLES:
                self._held_back.append(part)  # so that a user's training examples lie together
            elif part.records:
                self._write(split, part)

    def _hash_owner(self) -> bytes:
        assert self._user is not None
        return self._user

    def _count_short(self, piece: _Piece, sizes: NDArray[np.int64]) -> None:
        short = len(sizes) - piece.records
        if short:
            self._tally.drop(Drop.TOO_SHORT, short)
        rest = int(np.count_nonzero((sizes % self._seq_len == 1) & (sizes > 1)))
        if rest:
            self._tally.drop_examples(ExampleDrop.TOO_SHORT, rest)

    def _splits(self, records: list[Record], first: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """The code of each record's split."""
        codes = np.empty(len(records), dtype=np.uint8)
        by_hash = self._fractions[1] if self._rule is SplitRule.HASH else 0.0
        for number, (record, held_out) in enumerate(zip(records, first.tolist(), strict=True)):
            split = record_split(
                self._hash,
                self._stored + number,
                held_out_user=self._held_out_user,
                fraction=by_hash,
            )
            if (held_out or record.held_out) and split is Split.TRAIN:
                split = Split.HELD_OUT_EXAMPLES
            codes[number] = layout.SPLIT_CODES[split]
        return codes

    def _write(self, split: Split, piece: _Piece) -> None:
        self._body.write(
            split,
            piece.tokens,
            piece.lengths,
            targets=piece.targets,
            records=piece.records,
        )

    def _encode(self, batch: list[Record]) -> tuple[list[list[int]], list[list[int] | None]]:
        """The tokens of each record, and which are targets where it has pieces."""
        if not self._loss_mask:
            texts = [record.text.decode() for record in batch]
            return self._tokenizer.encode(texts), [None] * len(batch)
        both = [self._encode_pieces(record) for record in batch]
        return [ids for ids, _ in both], [marks for _, marks in both]

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


_Encoded = tuple[Record, list[int], list[int] | None]


def _contents(text: str, pieces: Sequence[tuple[int, int]]) -> Iterator[tuple[int, str]]:
    begin = 0
    for end, kind in pieces:
        if end > begin:
            yield kind, text[begin:end]
        begin = end


class _Piece:
    """Examples of consecutive records of one user.

    Attributes:
        tokens, lengths, targets: as `Body.write` takes them.
        per_record: int64 (records,), examples of each record, at least 1.
        source: int64 (records,), the number of each record in the run that was cut.
        kept: of the run's tokens, which are in an example.
    """

    def __init__(
        self,
        tokens: NDArray[Any],
        lengths: NDArray[np.int64],
        per_record: NDArray[np.int64],
        source: NDArray[np.int64],
        kept: NDArray[np.bool_],
        targets: NDArray[np.uint8] | None = None,
    ) -> None:
        self.tokens, self.lengths, self.targets = tokens, lengths, targets
        self.per_record, self.source, self.kept = per_record, source, kept

    @property
    def records(self) -> int:
        return len(self.per_record)

    @property
    def examples(self) -> int:
        return len(self.lengths)

    def only(self, records: NDArray[np.bool_]) -> _Piece:
        """The examples of some of the records."""
        if records.all():
            return self
        return self._where(np.repeat(records, self.per_record))

    def first_of_each(self) -> _Piece:
        """Each record's first example."""
        first = np.zeros(self.examples, dtype=bool)
        first[np.cumsum(self.per_record) - self.per_record] = True
        return self._where(first)

    def drop_without_target(self) -> int:
        """Leave out examples without a target after their first token; records lost by it."""
        assert self.targets is not None
        before = self.records
        starts = np.cumsum(self.lengths) - self.lengths
        counted = self.targets.astype(np.int64)
        counted[starts] = 0  # nothing precedes it in the example
        sums = np.add.reduceat(counted, starts) if len(starts) else starts
        kept = self._where(sums > 0)
        self.__dict__.update(kept.__dict__)
        return before - self.records

    def _where(self, examples: NDArray[np.bool_]) -> _Piece:
        tokens = np.repeat(examples, self.lengths)
        record = np.repeat(np.arange(self.records), self.per_record)
        per_record = np.bincount(record[examples], minlength=self.records)
        left = per_record > 0
        return _Piece(
            self.tokens[tokens],
            self.lengths[examples],
            per_record[left],
            self.source[left],
            self.kept,
            None if self.targets is None else self.targets[tokens],
        )


def cut_records(tokens: NDArray[Any], sizes: NDArray[np.int64], seq_len: int) -> _Piece:
    """Cut records into examples: all but a record's last have ``seq_len`` tokens.

    A last one of a single token has no target and is left out.
    """
    whole, rest = np.divmod(sizes, seq_len)
    last = rest >= layout.MIN_SEQ_LEN
    per_record = whole + last
    used = np.where(last, sizes, whole * seq_len)
    record = np.repeat(np.arange(len(sizes)), per_record)
    lengths = np.full(len(record), seq_len, dtype=np.int64)
    ends = np.cumsum(per_record)
    lengths[ends[last] - 1] = rest[last]
    place = np.arange(len(tokens)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept = place < np.repeat(used, sizes)
    left = per_record > 0
    return _Piece(tokens[kept], lengths, per_record[left], np.flatnonzero(left), kept)
