"""Tables whose rows are tokens already: what a training script of Hugging Face's makes.

Expected columns: the user, ``input_ids``, perhaps ``labels`` (each the token itself, or -100 where
the loss does not count it) and ``attention_mask`` (0 for padding, which is left out).

Rows travel through the stages of `userdp.data.pipeline` as text, eight hexadecimal digits a token:
grouping sorts bytes whatever they say, and `ReadyTokens` turns the digits back into tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any, Self

import numpy as np

from userdp.data.records import TARGET, Drop
from userdp.data.sources.memory import table_source
from userdp.data.sources.rows_to_records import Row, Table, record_of
from userdp.data.sources.source import Entry, SourceOptions
from userdp.data.store_tokenizer import StoreTokenizer

IDS, LABELS, MASK = "input_ids", "labels", "attention_mask"
IGNORED = -100
_DIGITS = 8


class ReadyTokens(StoreTokenizer):
    """A store's tokenizer, for rows that it has tokenized already: they stay as they are."""

    @classmethod
    def of(cls, tokenizer: StoreTokenizer) -> Self:
        """The same tokenizer for such rows; no end-of-text token is added to them."""
        values = {one.name: getattr(tokenizer, one.name) for one in fields_of(tokenizer)}
        return cls(**{**values, "end_of_text_id": None})

    def encode_pieces(
        self, text: str, pieces: Sequence[tuple[int, int]]
    ) -> tuple[list[int], list[int]]:
        """The tokens that ``text`` stands for, and the kind of each."""
        ends, kinds = zip(*pieces, strict=True)
        sizes = np.diff(ends, prepend=0) // _DIGITS
        return _tokens_of(text), (np.repeat(kinds, sizes) & TARGET).tolist()

    def _ids(self, texts: Any) -> list[list[int]]:
        return [_tokens_of(text) for text in texts]


def _tokens_of(text: str) -> list[int]:
    tokens: list[int] = np.frombuffer(bytes.fromhex(text), "<u4").tolist()
    return tokens


def build(table: Any, *, user: str, labels: bool, vocab_size: int) -> Table:
    """The source for a table of tokens.

    Args:
        table: as for `userdp.data.sources.memory.table_source`.
        user: the column that names a row's user; a list of users where several own it.
        labels: whether the table has that column; then the store gets a loss mask.
        vocab_size: rows with a token that is not below it are dropped.
    """

    def parse(row: Row) -> Entry:
        content = _content(row, labels, vocab_size)
        text, pieces = (content, None) if isinstance(content, Drop) else content
        return record_of(row.get(user), text, pieces=pieces)

    fields = (user, IDS, *((LABELS,) if labels else ()), MASK)
    source = table_source(table, SourceOptions(user=user, text=IDS))
    return replace(source, kind="tokens", fields=fields, parse=parse, loss_mask=labels)


def _content(
    row: Row, labels: bool, vocab_size: int
) -> tuple[str, tuple[tuple[int, int], ...] | None] | Drop:
    """The text that stands for a row's tokens; with labels its pieces, see `Record`."""
    ids, mask = row.get(IDS), row.get(MASK)
    if ids is None:
        return Drop.NO_TEXT_FIELD
    columns = [ids, row.get(LABELS) if labels else ids, ids if mask is None else mask]
    try:
        numbers = np.array(columns)  # of one length
        if numbers.size:
            numbers = numbers.astype(np.int64, casting="same_kind")
        ids, marks, kept = numbers
    except (TypeError, ValueError):
        return Drop.BAD_TOKENS
    if mask is not None:
        ids, marks = ids[kept != 0], marks[kept != 0]
    if not ids.size:
        return Drop.EMPTY_TEXT
    counted = marks != IGNORED
    known = ids.ndim == 1 and ids.min() >= 0 and ids.max() < vocab_size
    if not known or not (marks[counted] == ids[counted]).all():
        return Drop.BAD_TOKENS
    # Where runs of counted and of other tokens end.
    ends = np.append(np.flatnonzero(counted[1:] != counted[:-1]) + 1, len(counted))
    pieces = tuple((_DIGITS * int(end), TARGET if counted[end - 1] else 0) for end in ends)
    return ids.astype("<u4").tobytes().hex(), pieces if labels else None
