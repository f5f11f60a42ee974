"""Tables whose rows are tokens already: what a training script of Hugging Face's makes.

Expected columns: the user, ``input_ids``, perhaps ``labels`` (each the token itself, or -100 where
the loss does not count it) and ``attention_mask`` (0 for padding, which is left out).

Rows travel through the stages of `userdp.data.prepare` as text whose characters are their tokens:
grouping sorts bytes whatever they say, and `TokenRows` turns the characters back into tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from userdp.core.errors import UseError
from userdp.data.records import TARGET, Drop, Record
from userdp.data.sources.memory import MemoryTable
from userdp.data.sources.rows import Row, owners_of, record_of_owners
from userdp.data.tokenize import StoreTokenizer

IDS, LABELS, MASK = "input_ids", "labels", "attention_mask"
IGNORED = -100
_FIRST = 0x100
"""The character of token 0; what lies below has a meaning to some readers of text."""
_SURROGATES = range(0xD800, 0xE000)
"""No characters: tokens that would fall on them, and all later ones, are moved behind them."""
MOST_TOKENS = 0x110000 - len(_SURROGATES) - _FIRST
"""As many as there are characters."""


class TokenRows(StoreTokenizer):
    """A store's tokenizer, for rows that it has tokenized already: they stay as they are."""

    @classmethod
    def of(cls, tokenizer: StoreTokenizer) -> Self:
        """The same tokenizer for such rows; no end-of-text token is added to them.

        Raises:
            UseError: it has more tokens than there are characters.
        """
        if tokenizer.vocab_size > MOST_TOKENS:
            raise UseError(f"a vocabulary of more than {MOST_TOKENS} tokens cannot be stored")
        values = {one.name: getattr(tokenizer, one.name) for one in fields(tokenizer)}
        return cls(**{**values, "end_of_text_id": None})

    def encode_pieces(
        self, text: str, pieces: Sequence[tuple[int, int]]
    ) -> tuple[list[int], list[int]]:
        """The tokens that the characters of ``text`` stand for, and the kind of each."""
        ends, kinds = zip(*pieces, strict=True)
        marks = np.repeat(kinds, np.diff(ends, prepend=0))
        return tokens_of(text).tolist(), (marks & TARGET).tolist()

    def _ids(self, texts: Any) -> list[list[int]]:
        return [tokens_of(text).tolist() for text in texts]


def text_of_tokens(ids: NDArray[np.int64]) -> str:
    """The text whose characters stand for tokens; `tokens_of` takes it back.

    >>> tokens_of(text_of_tokens(np.array([0, 7, 60_000]))).tolist()
    [0, 7, 60000]
    """
    codes = ids + _FIRST
    codes = np.where(codes >= _SURROGATES.start, codes + len(_SURROGATES), codes)
    return codes.astype("<u4").tobytes().decode("utf-32-le")


def tokens_of(text: str) -> NDArray[np.int64]:
    """The tokens that the characters of a text stand for."""
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.int64)
    return np.where(codes >= _SURROGATES.stop, codes - len(_SURROGATES), codes) - _FIRST


def build(table: Any, *, user: str, labels: bool, vocab_size: int) -> MemoryTable:
    """The source for a table of tokens.

    Args:
        table: as for `userdp.data.sources.memory.table_source`.
        user: the column that names a row's user; a list of users where several own it.
        labels: whether the table has that column; then the store gets a loss mask.
        vocab_size: rows with a token that is not below it are dropped.
    """
    return MemoryTable(
        kind="tokens",
        parser=_TokenParser(user=user, labels=labels, vocab_size=vocab_size),
        several_owners=True,
        loss_mask=labels,
        tables=(table,),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _TokenParser:
    """A row of tokens; see `build` for the arguments."""

    user: str
    labels: bool
    vocab_size: int

    @property
    def fields(self) -> tuple[str, ...]:
        """User, tokens, which of them are padding, and which the loss counts."""
        return (self.user, IDS, MASK, *((LABELS,) if self.labels else ()))

    @property
    def required(self) -> tuple[tuple[str, ...], ...]:
        """All but the mask of padding."""
        return tuple((name,) for name in self.fields if name != MASK)

    def parse(self, row: Row) -> Record | Drop:
        """The record of a row; see `Parser.parse`."""
        content = self._content(row)
        text, pieces = (content, None) if isinstance(content, Drop) else content
        return record_of_owners(owners_of(row.get(self.user)), text, pieces=pieces)

    def _content(self, row: Row) -> tuple[bytes, tuple[tuple[int, int], ...] | None] | Drop:
        ids = _whole_numbers(row.get(IDS))
        if isinstance(ids, Drop):
            return ids
        kept = np.ones(len(ids), dtype=bool)
        if row.get(MASK) is not None:
            mask = _whole_numbers(row[MASK])
            if isinstance(mask, Drop) or len(mask) != len(ids):
                return Drop.BAD_TOKENS
            kept = mask != 0
        labels: NDArray[np.int64] | None = None
        if self.labels:
            told = _whole_numbers(row.get(LABELS))
            if isinstance(told, Drop) or len(told) != len(ids):
                return Drop.BAD_TOKENS
            labels = told[kept]
        ids = ids[kept]
        if not len(ids):
            return Drop.EMPTY_TEXT
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            return Drop.BAD_TOKENS
        text = text_of_tokens(ids).encode()
        if labels is None:
            return text, None
        counted = labels != IGNORED
        if not (labels[counted] == ids[counted]).all():
            return Drop.BAD_TOKENS
        return text, _pieces(counted)


def _whole_numbers(value: Any) -> NDArray[np.int64] | Drop:
    if value is None:
        return Drop.NO_TEXT_FIELD
    try:
        numbers = np.asarray(value)
    except ValueError:  # lists of different lengths
        return Drop.BAD_TOKENS
    if numbers.ndim == 1 and not len(numbers):
        return numbers.astype(np.int64)
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        return Drop.BAD_TOKENS
    return numbers.astype(np.int64)


def _pieces(counted: NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
    """`Record.pieces` of a row: where runs of counted and of other tokens end."""
    ends = np.append(np.flatnonzero(counted[1:] != counted[:-1]) + 1, len(counted))
    return tuple((int(end), TARGET if counted[end - 1] else 0) for end in ends)
