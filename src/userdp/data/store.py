"""Read a user store: memory-mapped, zero-copy, at a cost that follows the rows asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from userdp.data import format as layout
from userdp.data.meta import StoreMeta, read_meta
from userdp.data.splits import Split
from userdp.errors import UseError


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows of tokens of unequal length.

    Args:
        tokens: uint16 or uint32, flat.
        offsets: int64 (rows + 1,); row r is ``tokens[offsets[r]:offsets[r + 1]]``.
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """int64 (rows,): tokens of each row."""
        return np.diff(self.offsets)

    def row(self, row: int) -> NDArray[Any]:
        """The tokens of one row."""
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]


class UserStore:
    """A store that `userdp prepare` wrote, open for reading. Several readers may have it open.

    Opening costs time and memory of the order of the number of users; tokens stay on disk until
    they are gathered. Use `open`.

    Args:
        path: the folder.
        meta: its facts; operator-only but for ``store_id`` (see `userdp.data.format`).
    """

    def __init__(self, path: Path, meta: StoreMeta) -> None:
        self.path = path
        self.meta = meta
        names = sorted(folder.name for folder in (path / layout.SEGMENTS).iterdir())
        folders = [path / layout.SEGMENTS / name for name in names]
        self._segments = [
            _Segment(_column(f / layout.TOKENS), _column(f / layout.OFFSETS)) for f in folders
        ]
        self._hashes = _hash_words(path / layout.USERS)
        self._spans = _columns(path / layout.SPANS)

    @classmethod
    def open(cls, path: Path | str) -> UserStore:
        """Open the store at ``path``.

        Raises:
            UseError: no store is there, it is of another version, or a file of it is damaged.
        """
        folder = Path(path)
        meta = read_meta(folder)
        try:
            return cls(folder, meta)
        except (OSError, pa.ArrowInvalid) as error:
            raise UseError(
                f"the store at {folder} is damaged: {error}",
                hint="prepare it again from its source",
            ) from error

    @property
    def tokenizer_path(self) -> Path:
        """The copy of tokenizer.json that the tokens were made with."""
        return self.path / layout.TOKENIZER

    @property
    def users(self) -> int:
        """Users in all splits. Operator-only."""
        return len(self._hashes)

    def split(self, name: Split | str) -> StoreSplit:
        """One split: ``Split.TRAIN``, ``HELD_OUT_USERS`` or ``HELD_OUT_EXAMPLES``."""
        try:
            split = Split(name)
        except ValueError:
            raise UseError(
                f"no split is named {str(name)!r}", hint=f"one of: {', '.join(Split)}"
            ) from None
        code = layout.SPLIT_CODES[split]
        first, last = np.searchsorted(self._spans["split"], [code, code + 1])
        spans = {key: values[first:last] for key, values in self._spans.items()}
        return StoreSplit(split, self._segments, spans, self._hashes)

    def user_ids(self) -> list[bytes]:
        """Users' ids as UTF-8, by row. Operator-only; only where user-ids.arrow was kept.

        Raises:
            UseError: the file of ids is not there.
        """
        path = self.path / layout.USER_IDS
        if not path.exists():
            raise UseError(
                f"the store at {self.path} was handed on without its user ids",
                hint=f"ask its operator for {layout.USER_IDS}",
            )
        ids: list[bytes] = _table(path).column("id").to_pylist()
        return ids


class StoreSplit:
    """The examples of one split, by (user, example) index.

    Users are numbered from 0 among those with examples in this split, in the order of their ids'
    bytes; examples from 0 within each user's part of it.

    Attributes:
        name: which split.
        counts: int64 (users,), examples of each user. Operator-only.
        rows: int64 (users,), each user's row in the whole store.
        user_hashes: uint64 (users, 2), each user's public-salt hash, for `selection`.
    """

    def __init__(
        self,
        name: Split,
        segments: list[_Segment],
        spans: dict[str, NDArray[Any]],
        hashes: NDArray[np.uint64],
    ) -> None:
        self.name = name
        self._segments = segments
        self._span_segment: NDArray[np.int32] = spans["segment"]
        self._span_start: NDArray[np.int64] = spans["start"]
        self._span_first = _starts(spans["length"])
        user = spans["user"]
        first_span = np.flatnonzero(np.diff(user, prepend=-1))
        self.rows: NDArray[np.int64] = user[first_span]
        self._user_first = self._span_first[np.append(first_span, len(user))]
        self.counts: NDArray[np.int64] = np.diff(self._user_first)
        self.user_hashes: NDArray[np.uint64] = hashes[self.rows]

    def gather(self, users: ArrayLike, examples: ArrayLike) -> TokenRows:
        """The tokens of example ``examples[r]`` of user ``users[r]``, for each r, in that order.

        Cost follows the rows gathered, whatever the size of the store. The result is a copy.

        Args:
            users: int64 (rows,), each in [0, len(counts)).
            examples: int64 (rows,), each in [0, counts[user]).

        Raises:
            IndexError: an index is out of range.
        """
        segment, row = self._places(users, examples)
        lengths = np.empty(len(row), dtype=np.int64)
        begins = np.empty(len(row), dtype=np.int64)
        parts = [(number, np.flatnonzero(segment == number)) for number in np.unique(segment)]
        for number, where in parts:
            offsets = self._segments[number].offsets
            begins[where] = offsets[row[where]]
            lengths[where] = offsets[row[where] + 1] - begins[where]
        out_offsets = _starts(lengths)
        dtype = self._segments[0].tokens.dtype if self._segments else np.dtype(np.uint16)
        tokens = np.empty(out_offsets[-1], dtype=dtype)
        for number, where in parts:
            source = _ranges(begins[where], lengths[where])
            target = slice(None) if len(parts) == 1 else _ranges(out_offsets[where], lengths[where])
            tokens[target] = self._segments[number].tokens[source]
        return TokenRows(tokens, out_offsets)

    def lengths(self, users: ArrayLike, examples: ArrayLike) -> NDArray[np.int64]:
        """int64 (rows,): tokens of each example; reads no tokens. Arguments as in `gather`."""
        segment, row = self._places(users, examples)
        lengths = np.empty(len(row), dtype=np.int64)
        for number in np.unique(segment):
            where = np.flatnonzero(segment == number)
            offsets = self._segments[number].offsets
            lengths[where] = offsets[row[where] + 1] - offsets[row[where]]
        return lengths

    def _places(
        self, users: ArrayLike, examples: ArrayLike
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The segment of each example and its number there."""
        user = np.asarray(users, dtype=np.int64)
        example = np.asarray(examples, dtype=np.int64)
        if user.shape != example.shape or user.ndim != 1:
            raise IndexError(
                f"users and examples must be of one length, got shapes {user.shape} and "
                f"{example.shape}"
            )
        if user.size and not (user.min() >= 0 and user.max() < len(self.counts)):
            raise IndexError(f"a user index is outside [0, {len(self.counts)})")
        if not np.all((example >= 0) & (example < self.counts[user])):
            raise IndexError("an example index is outside its user's [0, count)")
        number = self._user_first[user] + example
        span = np.searchsorted(self._span_first, number, side="right") - 1
        row = self._span_start[span] + (number - self._span_first[span])
        return self._span_segment[span], row


@dataclass(frozen=True, slots=True)
class _Segment:
    tokens: NDArray[Any]
    offsets: NDArray[np.int64]


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of consecutive parts begins, and the end: int64 (parts + 1,)."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _ranges(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers begins[r], ..., begins[r] + lengths[r] - 1 for each r, one after another."""
    starts = _starts(lengths)
    return np.repeat(begins - starts[:-1], lengths) + np.arange(starts[-1])


def _table(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def _columns(path: Path) -> dict[str, NDArray[Any]]:
    table = _table(path)
    return {
        name: table.column(name).combine_chunks().to_numpy(zero_copy_only=True)
        if table.num_rows == 0
        else table.column(name).chunk(0).to_numpy(zero_copy_only=True)
        for name in table.column_names
    }


def _column(path: Path) -> NDArray[Any]:
    (values,) = _columns(path).values()
    return values


def _hash_words(path: Path) -> NDArray[np.uint64]:
    column = _table(path).column("hash")
    if len(column) == 0:
        return np.zeros((0, 2), dtype=np.uint64)
    chunk = column.chunk(0)
    words = np.frombuffer(chunk.buffers()[1], dtype="<u8", count=2 * len(chunk))
    return words.reshape(-1, 2)
