"""Records ordered by user to examples: tokenized, split, cut, and written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.data.ahead import ahead
from userdp.data.hashing import user_hash
from userdp.data.meta import MIN_SEQ_LEN, StoreMeta
from userdp.data.records import (
    BLOCK,
    TARGET,
    Drop,
    ExampleDrop,
    Tally,
    pieces_of,
    run_starts,
    values_of,
)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What becomes of a user's records; the same in every process that writes a part of a store.

    Args:
        meta: of the store that is added to, which may be empty.
        tokenizer: of the store.
        rule: how a training user's records are split.
        one_per_record: keep each record's first example alone (see `ownership`).
        known: the folder of the index that is added to; None for a new store.
    """

    meta: StoreMeta
    tokenizer: StoreTokenizer
    rule: SplitRule
    one_per_record: bool
    known: Path | None


@dataclass(frozen=True, slots=True)
class Cut:
    """Consecutive records, cut into examples.

    Args:
        sizes: int64 (records,), tokens of each record before it was cut.
        per_record: int64 (records,), examples of each; 0 of one that cannot be stored.
        held_out: bool (records,), by the source's own split.
        lengths: int64 (examples,), tokens of each example.
        tokens: flat, of all examples.
        targets: uint8, parallel to the tokens; None without a loss mask.
    """

    sizes: NDArray[np.int64]
    per_record: NDArray[np.int64]
    held_out: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    tokens: NDArray[Any]
    targets: NDArray[np.uint8] | None

    def parts(self, bounds: list[int]) -> Iterator[Cut]:
        """The records between any two neighbours of ``bounds``; nothing is copied."""
        ends = np.append(0, np.cumsum(self.per_record))[bounds]
        token_ends = np.append(0, np.cumsum(self.lengths))[ends].tolist()
        places = (pairwise(at) for at in (bounds, ends.tolist(), token_ends))
        for record, example, token in zip(*places, strict=True):
            records, tokens = slice(*record), slice(*token)
            yield Cut(
                self.sizes[records],
                self.per_record[records],
                self.held_out[records],
                self.lengths[slice(*example)],
                self.tokens[tokens],
                None if self.targets is None else self.targets[tokens],
            )

    def of_records(self, chosen: NDArray[np.bool_]) -> Cut:
        """The examples of some of the records; the others have none."""
        return self if chosen.all() else self.only(np.repeat(chosen, self.per_record))

    def only(self, examples: NDArray[np.bool_]) -> Cut:
        """Some of the examples."""
        tokens = np.repeat(examples, self.lengths)
        record = np.repeat(np.arange(len(self.sizes)), self.per_record)
        return Cut(
            self.sizes,
            np.bincount(record[examples], minlength=len(self.sizes)),
            self.held_out,
            self.lengths[examples],
            self.tokens[tokens],
            None if self.targets is None else self.targets[tokens],
        )


def cut_records(
    tokens: NDArray[Any],
    sizes: NDArray[np.int64],
    *,
    seq_len: int,
    held_out: NDArray[np.bool_],
    targets: NDArray[np.uint8] | None = None,
) -> Cut:
    """Cut records into examples: all but a record's last have ``seq_len`` tokens.

    A last one of a single token has no target and is left out.

    Args:
        tokens: of all records, one after another.
        sizes: int64 (records,), tokens of each.
        seq_len: most tokens of an example.
        held_out: as in `Cut`.
        targets: as in `Cut`.
    """
    whole, rest = np.divmod(sizes, seq_len)
    last = rest >= MIN_SEQ_LEN
    per_record = whole + last
    lengths = np.full(int(per_record.sum()), seq_len, dtype=np.int64)
    lengths[np.cumsum(per_record)[last] - 1] = rest[last]
    kept = np.ones(len(tokens), dtype=bool)
    kept[np.cumsum(sizes)[rest == 1] - 1] = False
    if not kept.all():
        tokens, targets = tokens[kept], None if targets is None else targets[kept]
    return Cut(sizes, per_record, held_out, lengths, tokens, targets)


def write_examples(
    blocks: Iterable[pa.RecordBatch],
    writer: SegmentWriter,
    recipe: Recipe,
    tally: Tally,
    at: Callable[[int], None] = lambda _: None,
) -> None:
    """Write the examples of all records of some users.

    Guarantee (invariant 11): what becomes of a record depends on its user's records, the tokenizer
    and a per-user hash. Memory is bounded by some blocks.

    Args:
        blocks: by (user bytes, place).
        writer: of the store, or of a part of one; it has a loss mask if records have pieces.
        recipe: see there.
        tally: the books.
        at: is told how many records are done.
    """
    if recipe.rule is SplitRule.FIRST_PART:
        blocks = _first_parts(blocks, writer.records_before, tally)
    examples = _Examples(writer, recipe, tally)
    done = 0
    # One block is tokenized while the one before it is cut and written.
    for block, cut in ahead(examples.cut, blocks):
        examples.add(block["user"], cut)
        done += len(block)
        at(done)
    examples.flush()


class _Examples:
    """Takes cut records that come ordered by user, and writes each user's examples."""

    def __init__(self, writer: SegmentWriter, recipe: Recipe, tally: Tally) -> None:
        self._writer, self._recipe, self._tally = writer, recipe, tally
        self._fraction = recipe.meta.held_out_examples if recipe.rule is SplitRule.HASH else 0.0
        self._user = b""  # nobody: an id is never empty
        self._held_back: list[Cut] = []

    def cut(self, block: pa.RecordBatch) -> Cut:
        """Tokenize the records of a block, and cut them; needs nothing of what is being written."""
        recipe = self._recipe
        targets: NDArray[np.uint8] | None = None
        if recipe.meta.loss_mask:
            tokens, sizes, targets = _tokens_of_pieces(block, recipe.tokenizer)
        else:
            texts = values_of(block["text"].cast(pa.large_string()))
            tokens, sizes = recipe.tokenizer.encode_flat(texts)
        held_out = block["held_out"].to_numpy(zero_copy_only=False)
        seq_len = recipe.meta.seq_len
        return cut_records(tokens, sizes, seq_len=seq_len, held_out=held_out, targets=targets)

    def add(self, users: pa.LargeBinaryArray, cut: Cut) -> None:
        """Take the next records in."""
        starts = run_starts(users)
        names = values_of(users.take(pa.array(starts)))
        bounds = [*starts.tolist(), len(users)]
        for user, part in zip(names, self._counted(cut).parts(bounds), strict=True):
            if user != self._user:
                self.flush()
                self._begin(user)
            self._store(part)

    def flush(self) -> None:
        """Write what is left of the last user: last, so that training examples lie together."""
        for cut in self._held_back:
            self._write(Split.HELD_OUT_EXAMPLES, cut)
        self._held_back.clear()

    def _counted(self, cut: Cut) -> Cut:
        """What is stored of cut records; what is not is counted."""
        tally, sizes = self._tally, cut.sizes
        drop = tally.drop_examples
        whole = sizes > 1
        drop(ExampleDrop.TOO_SHORT, int((whole & (sizes % self._recipe.meta.seq_len == 1)).sum()))
        if self._recipe.one_per_record:
            first = np.zeros(len(cut.lengths), dtype=bool)
            own = cut.per_record[cut.per_record > 0]
            first[np.cumsum(own) - own] = True
            drop(ExampleDrop.ONE_PER_RECORD, int((~first).sum()))
            cut = cut.only(first)
        if cut.targets is not None and len(cut.lengths):
            starts = np.cumsum(cut.lengths) - cut.lengths
            counted = cut.targets.astype(np.int64)
            counted[starts] = 0  # nothing precedes a first token, from which to predict it
            learns = np.add.reduceat(counted, starts) > 0
            drop(ExampleDrop.NO_TARGET, int((~learns).sum()))
            cut = cut.only(learns)
        tally.drop(Drop.TOO_SHORT, int((~whole).sum()))
        tally.drop(Drop.NO_ANSWER, int((whole & (cut.per_record == 0)).sum()))
        return cut

    def _begin(self, user: bytes) -> None:
        self._user, self._begun, self._hash = user, False, user_hash(user)
        self._held_out_user = is_held_out_user(self._hash, self._recipe.meta.held_out_users)
        self._stored = self._writer.records_before(user)

    def _store(self, cut: Cut) -> None:
        """Write records of the present user."""
        usable = cut.per_record > 0
        records = int(usable.sum())
        if not records:
            return
        if not self._begun:
            self._writer.user(self._user)
            self._begun = True
        first, self._stored = self._stored, self._stored + records
        self._tally.store(records)
        if self._held_out_user:
            self._write(Split.HELD_OUT_USERS, cut)
            return
        held_out = cut.held_out.copy()
        held_out[usable] |= held_out_records(self._hash, first, records, fraction=self._fraction)
        if not held_out[usable].all():
            self._write(Split.TRAIN, cut.of_records(~held_out))
        if held_out[usable].any():
            self._held_back.append(cut.of_records(held_out))

    def _write(self, split: Split, cut: Cut) -> None:
        records = int((cut.per_record > 0).sum())
        self._writer.write(split, cut.tokens, cut.lengths, targets=cut.targets, records=records)


def _first_parts(
    blocks: Iterable[pa.RecordBatch], before: Callable[[bytes], int], tally: Tally
) -> Iterator[pa.RecordBatch]:
    """The rule ``FIRST_PART``: users of one record are dropped, of others the first part held out.

    Records that an append brings to a known user are trained on: the first part is there. At most
    `FIRST_PART_LOOK` records of a user wait for the next block, until their number is known.

    Args:
        blocks: by (user bytes, place).
        before: how many records of a user the store holds already.
        tally: counts users of one record.
    """
    rest = BLOCK.empty_table().to_batches()
    settled = b""  # the user whose first part has gone by
    for block in chain(blocks, [None]):
        rows = pa.Table.from_batches([*rest, *([] if block is None else [block])], BLOCK)
        rows = rows.combine_chunks()
        users = rows["user"].chunk(0) if len(rows) else pa.array([], pa.large_binary())
        held_out, kept = rows["held_out"].to_numpy().copy(), np.ones(len(rows), dtype=bool)
        done = len(rows)
        for begin, end in pairwise([*run_starts(users).tolist(), len(rows)]):
            user, count = users[begin].as_py(), end - begin
            if user == settled:
                continue
            if end == len(rows) and block is not None and count < FIRST_PART_LOOK:
                done = begin
                break
            settled = user
            if before(user):
                continue
            if count == 1:
                kept[begin] = False
                tally.drop(Drop.SINGLETON)
            else:
                held_out[begin : begin + first_part(count)] = True
        rest = rows.slice(done).to_batches()
        rows = rows.set_column(BLOCK.get_field_index("held_out"), "held_out", pa.array(held_out))
        yield from rows.slice(0, done).filter(kept[:done]).combine_chunks().to_batches()


def _tokens_of_pieces(
    block: pa.RecordBatch, tokenizer: StoreTokenizer
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.uint8]]:
    """The tokens of conversations, how many each has, and which of them the loss counts."""
    ids: list[int] = []
    marks: list[int] = []
    sizes = []
    for text, packed in zip(values_of(block["text"]), values_of(block["pieces"]), strict=True):
        content = text.decode()
        new, kinds = tokenizer.encode_pieces(content, pieces_of(packed) or [(len(content), TARGET)])
        last = tokenizer.end_of_text_id
        if last is not None and new[-1:] != [last]:
            new.append(last)
            kinds.append(kinds[-1] if kinds else TARGET)
        ids += new
        marks += kinds
        sizes.append(len(new))
    tokens = np.array(ids, dtype=tokenizer.dtype)
    return tokens, np.array(sizes, dtype=np.int64), np.array(marks, dtype=np.uint8)
