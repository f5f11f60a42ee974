"""Records ordered by user to examples: tokenized, split, cut, and written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.data.records import (
    BLOCK,
    TARGET,
    Drop,
    ExampleDrop,
    Tally,
    offsets_of,
    run_starts,
    unpacked,
)
from userdp.data.splits import (
    Split,
    SplitRule,
    first_part,
    held_out_records,
    is_held_out_user,
    user_hash,
)
from userdp.data.store_contents import ends_of, members_of, pieces
from userdp.data.store_meta import MIN_SEQ_LEN
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.writer import StoreWriter

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def tokenized(
    block: pa.RecordBatch, *, tokenizer: StoreTokenizer, loss_mask: bool
) -> pa.RecordBatch:
    """A block of records with their tokens in place of their texts.

    Guarantee: each record's tokens depend on its own text and the tokenizer.

    Args:
        block: of the schema `userdp.data.records.BLOCK`.
        tokenizer: of the store.
        loss_mask: whether records have pieces, some of which the loss counts.
    """
    if loss_mask:
        tokens, sizes = _tokens_of_pieces(block["content"].to_pylist(), tokenizer)
    else:
        texts = block["content"].cast(pa.large_string()).to_pylist()
        tokens, sizes = tokenizer.encode_flat(texts)
    buffers = [None, pa.py_buffer(ends_of(sizes * tokens.itemsize)), pa.py_buffer(tokens)]
    content = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(block), buffers)
    return pa.record_batch([block["user"], content, block["held_out"]], schema=BLOCK)


def _marked(token_dtype: str) -> np.dtype[Any]:
    """A token of a store with a loss mask, and whether the loss counts it."""
    return np.dtype([("token", token_dtype), ("target", "u1")])


def write_examples(
    blocks: Iterable[pa.RecordBatch],
    writer: StoreWriter,
    tally: Tally,
    *,
    rule: SplitRule,
    one_per_record: bool,
    at: Callable[[int], None] = lambda _: None,
) -> None:
    """Write the examples of all records.

    Guarantee (invariant 11): what becomes of a record depends on its user's records, the tokenizer
    and a per-user hash. Memory is bounded by some blocks.

    Args:
        blocks: `tokenized`; each user's records one after another, in their order.
        writer: of the store.
        tally: the books.
        rule: how a training user's records are split; `first_parts` has applied ``FIRST_PART``.
        one_per_record: keep each record's first example alone (see `ownership`).
        at: is called with the number of records written.
    """
    meta = writer.meta
    fraction = meta.held_out_examples if rule is SplitRule.HASH else 0.0
    kind = _marked(meta.token_dtype) if meta.loss_mask else np.dtype(meta.token_dtype)
    done = 0
    for block in blocks:
        ends, held_out = offsets_of(block["content"]), _held_out(block)
        content = np.frombuffer(memoryview(block["content"].buffers()[2])[ends[0] : ends[-1]], kind)
        sizes = np.diff(ends) // kind.itemsize
        tokens, targets = (content["token"], content["target"]) if kind.names else (content, None)
        record, begins, lengths = cut_records(sizes, meta.seq_len)
        kept = _kept(record, begins, lengths, targets, one_per_record, tally)
        record, begins, lengths = record[kept], begins[kept], lengths[kept]
        usable = np.bincount(record, minlength=len(sizes)) > 0
        whole, cut = sizes > 1, (sizes > 1) & (sizes % meta.seq_len == 1)
        tally.drop(Drop.TOO_SHORT, int((~whole).sum()))
        tally.drop(Drop.NO_ANSWER, int((whole & ~usable).sum()))
        tally.drop_examples(ExampleDrop.TOO_SHORT, int(cut.sum()))
        tally.records_stored += int(usable.sum())
        runs = run_starts(block["user"])
        bounds = [*runs.tolist(), len(sizes)]
        users = block["user"].take(pa.array(runs)).to_pylist()
        examples = np.searchsorted(record, bounds).tolist()
        for user, records, own in zip(users, pairwise(bounds), pairwise(examples), strict=True):
            here, there = slice(*records), slice(*own)
            if not len(record[there]):
                continue
            key, stored, out = user_hash(user), usable[here], held_out[here]
            first, count = writer.records_of(user), int(stored.sum())
            out[stored] |= held_out_records(key, first, count, fraction=fraction)
            # Training examples first, so that they lie together.
            splits = {Split.TRAIN: ~out, Split.HELD_OUT_EXAMPLES: out}
            if is_held_out_user(key, meta.held_out_users):
                splits = {Split.HELD_OUT_USERS: np.ones_like(out)}
            for split, chosen in splits.items():
                part = chosen[record[there] - here.start]
                where = begins[there][part], lengths[there][part]
                flat, number = pieces(tokens, *where), int((chosen & stored).sum())
                marks = None if targets is None else pieces(targets, *where)
                writer.write(user, split, flat, where[1], targets=marks, records=number)
        done += len(sizes)
        at(done)


def cut_records(
    sizes: NDArray[np.int64], seq_len: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cut records into examples: all but a record's last have ``seq_len`` tokens.

    A last one of a single token has no target and is left out.

    Args:
        sizes: int64 (records,), tokens of each record, which lie one after another.
        seq_len: most tokens of an example.

    Returns:
        Of each example its record, where its tokens begin among all, and how many they are.
    """
    record, number = members_of((sizes + seq_len - MIN_SEQ_LEN) // seq_len)
    lengths = np.minimum(sizes[record] - number * seq_len, seq_len)
    return record, ends_of(sizes)[record] + number * seq_len, lengths


def _kept(
    record: NDArray[np.int64],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    targets: NDArray[np.uint8] | None,
    one_per_record: bool,
    tally: Tally,
) -> NDArray[np.bool_]:
    """Which examples are stored: bool (examples,); the others are counted."""
    kept = np.ones(len(record), dtype=bool)
    if one_per_record:
        kept[1:] = record[1:] != record[:-1]
        tally.drop_examples(ExampleDrop.ONE_PER_RECORD, int((~kept).sum()))
    if targets is not None and len(record):
        # Nothing precedes a first token, from which to predict it.
        counted = ends_of(targets.astype(np.int64))
        learns = counted[begins + lengths] > counted[begins + 1]
        tally.drop_examples(ExampleDrop.NO_TARGET, int((kept & ~learns).sum()))
        kept &= learns
    return kept


def first_parts(
    blocks: Iterable[pa.RecordBatch],
    records_of: Mapping[bytes, int],
    is_new: Callable[[bytes], bool],
    tally: Tally,
) -> Iterator[pa.RecordBatch]:
    """The rule ``FIRST_PART``: users of one record are dropped, of others the first part held out.

    Records that an append brings to a known user are trained on: the first part is there.

    Args:
        blocks: records, each user's one after another.
        records_of: how many records of each user all blocks hold.
        is_new: whether the store held nothing of a user before.
        tally: counts users of one record.
    """
    last, passed = b"", 0  # the user of the last record, and how many of theirs have gone by
    for block in blocks:
        users, held_out, kept = block["user"], _held_out(block), np.ones(len(block), dtype=bool)
        for begin, end in pairwise([*run_starts(users).tolist(), len(block)]):
            user = users[begin].as_py()
            passed = passed if user == last else 0
            if is_new(user) and records_of[user] == 1:
                kept[begin] = False
                tally.drop(Drop.SINGLETON)
            elif is_new(user):
                part = max(0, first_part(records_of[user]) - passed)
                held_out[begin : min(end, begin + part)] = True
            last, passed = user, passed + end - begin
        place = block.schema.get_field_index("held_out")
        block = block.set_column(place, "held_out", pa.array(held_out))
        yield block.filter(pa.array(kept))


def _held_out(block: pa.RecordBatch) -> NDArray[np.bool_]:
    held_out: NDArray[np.bool_] = block["held_out"].to_numpy(zero_copy_only=False).copy()
    return held_out


def _tokens_of_pieces(
    conversations: list[bytes], tokenizer: StoreTokenizer
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The `_marked` tokens of conversations, one after another, and how many each has."""
    ids: list[int] = []
    marks: list[int] = []
    sizes = []
    for value in conversations:
        new, kinds = tokenizer.encode_pieces(*unpacked(value))
        last = tokenizer.end_of_text_id
        if last is not None and new[-1:] != [last]:
            new.append(last)
            kinds.append(kinds[-1] if kinds else TARGET)
        ids += new
        marks += kinds
        sizes.append(len(new))
    tokens = np.empty(len(ids), _marked(tokenizer.dtype))
    tokens["token"], tokens["target"] = ids, marks
    return tokens, np.array(sizes, dtype=np.int64)


def ahead(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """``function`` of each item, in order; one is computed ahead of the caller.

    ``items`` is advanced in the caller's thread, ``function`` runs in another one. An error of
    ``function`` comes out where its item stands, one of ``items`` at once.
    """
    before: Future[_Result] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        for item in items:
            begun = pool.submit(function, item)
            if before is not None:
                yield before.result()
            before = begun
        if before is not None:
            yield before.result()
