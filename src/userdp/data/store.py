"""Read a user store: memory-mapped, zero-copy, at a cost that follows the rows asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from userdp.data import meta as layout
from userdp.data.files import finish_erasure, index_folder, read_columns
from userdp.data.index import SPAN_KINDS, Index, read_hashes, read_ids
from userdp.data.meta import StoreMeta, read_meta
from userdp.data.segments import Segment
from userdp.data.splits import Split
from userdp.errors import UseError


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows of tokens of unequal length.

    Args:
        tokens: uint16 or uint32, flat.
        offsets: int64 (rows + 1,); row r is ``tokens[offsets[r]:offsets[r + 1]]``.
        targets: bool, parallel to ``tokens``: which of them the loss counts; None where the store
            has no loss mask, so that every token but a row's first is a target.
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]
    targets: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row; int64, (rows,)."""
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
        meta: its facts; operator-only but for ``store_id`` (see `userdp.data.meta`).
    """

    def __init__(self, path: Path, meta: StoreMeta) -> None:
        self.path = path
        self.meta = meta
        self._segments = [Segment.open(path, meta, number) for number in range(meta.segments)]
        self._index = index_folder(path, meta)
        self._hashes = read_hashes(self._index)
        self._spans = read_columns(self._index / layout.SPANS, SPAN_KINDS)
        ids = self._index / layout.USER_IDS
        # A later append may remove the file.
        self._ids = read_ids(self._index, users=len(self._hashes)) if ids.exists() else None

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"UserStore({str(self.path)!r})"

    @classmethod
    def open(cls, path: Path | str, *, fixed_graph: bool = False) -> UserStore:
        """Open the store at ``path``.

        Args:
            path: the folder.
            fixed_graph: the caller knows that ``meta.ownership`` may say that claims over this
                store stand under ``fixed-graph`` adjacency, for example-level sampling with
                ``group_size`` of at least ``records_per_user`` alone. Who does not say so is
                refused, as an add-or-remove claim would be false there.

        Raises:
            UseError: no store is there, it is of another version, a file of it is damaged, or it
                needs ``fixed_graph``.
        """
        folder = Path(path)
        meta = read_meta(folder)
        finish_erasure(folder, meta)
        if meta.ownership["adjacency"] == "fixed-graph" and not fixed_graph:
            raise UseError(
                f"the records of the store at {folder} have several owners, bounded for "
                "fixed-graph adjacency: a claim that says add-or-remove would be false",
                hint="prepare it with --owners first, where a record is its first owner's alone",
            )
        try:
            return cls(folder, meta)
        except (OSError, UseError) as error:
            now = read_meta(folder)
            if now.generation != meta.generation:  # changed since we read it
                return cls.open(folder, fixed_graph=fixed_graph)
            raise UseError(
                f"the store at {folder} is damaged: {error}",
                hint="prepare it again from its source",
            ) from error

    @property
    def tokenizer_path(self) -> Path:
        """The copy of tokenizer.json that the tokens were made with."""
        return self.path / self.meta.tokenizer

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

    @property
    def has_ids(self) -> bool:
        """Whether the store has its users' ids: one that was handed on may lack them."""
        return self._ids is not None

    def index(self) -> Index:
        """The whole index, for appending and verifying; `UseError` without the user ids."""
        self.user_ids()
        return Index.read(self._index)

    def spans(self) -> dict[str, NDArray[Any]]:
        """The columns of the span index, for verifying."""
        return self._spans

    def examples_of(self, row: int) -> Iterator[NDArray[Any]]:
        """The tokens of each example of the user at ``row``, whatever its split. Operator-only."""
        spans = self._spans
        for place in np.flatnonzero(spans["user"] == row).tolist():
            segment = self._segments[spans["segment"][place]]
            start = int(spans["start"][place])
            for example in range(start, start + int(spans["length"][place])):
                yield segment.tokens[segment.offsets[example] : segment.offsets[example + 1]]

    def segment_examples(self) -> list[int]:
        """Examples of each segment."""
        return [len(segment.offsets) - 1 for segment in self._segments]

    def user_ids(self) -> list[bytes]:
        """Users' ids as UTF-8, by row. Operator-only; only where user-ids.arrow was kept.

        Raises:
            UseError: the file of ids is not there.
        """
        if self._ids is None:
            raise UseError(
                f"the store at {self.path} was handed on without its user ids",
                hint=f"ask its operator for {layout.USER_IDS}",
            )
        return list(self._ids.to_pylist())


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
        segments: list[Segment],
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
        self._user_spans = np.append(first_span, len(user))
        self._spans_in_tokens: tuple[NDArray[np.int64], ...] | None = None
        self._user_first = self._span_first[self._user_spans]
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
        return self._copy(segment, *self._extents(segment, row))

    @property
    def token_counts(self) -> NDArray[np.int64]:
        """int64 (users,): tokens of each user's examples, one after another. Operator-only."""
        return self._token_spans()[2]

    def gather_tokens(self, users: ArrayLike, starts: ArrayLike, length: int) -> TokenRows:
        """``length`` tokens from place ``starts[r]`` of all of user ``users[r]``'s tokens.

        A user's examples are read one after another, so rows cross the borders of examples and
        records (never of users). A row is shorter where the user's tokens end.

        Args:
            users: int64 (rows,), each in [0, len(counts)).
            starts: int64 (rows,), each in [0, token_counts[user]).
            length: tokens of a row, at least 1.

        Raises:
            IndexError: an index is out of range.

        Source: "random chunk" of Chua et al. 2024, Section 5.1.
        """
        user, start = require_places(users, starts, self.token_counts, what="start")
        first, span_begin, _ = self._token_spans()
        bounds = self._user_spans
        end = first[bounds[user + 1]]
        place = first[bounds[user]] + start
        end = np.minimum(place + length, end)
        rows = np.arange(len(user))
        nothing = np.zeros(0, dtype=np.int64)
        parts = [(nothing, nothing, nothing, nothing)]
        while rows.size:  # as often as the row of most spans crosses a border
            span = np.searchsorted(first, place[rows], side="right") - 1
            here = np.minimum(end[rows], first[span + 1]) - place[rows]
            parts.append((rows, span, place[rows] - first[span], here))
            place[rows] += here
            rows = rows[place[rows] < end[rows]]
        order = np.argsort(np.concatenate([part[0] for part in parts]), kind="stable")
        row, span, inside, here = (
            np.concatenate(column)[order] for column in zip(*parts, strict=True)
        )
        segment = self._span_segment[span]
        pieces = self._copy(segment, span_begin[span] + inside, here)
        offsets = _starts(np.bincount(row, weights=here, minlength=len(user)).astype(np.int64))
        return TokenRows(pieces.tokens, offsets, pieces.targets)

    def _token_spans(self) -> tuple[NDArray[np.int64], ...]:
        """Where each span's tokens begin among the split's, and in their segment; users' counts."""
        if self._spans_in_tokens is None:
            count = np.diff(self._span_first)
            begins, sizes = self._extents(self._span_segment, self._span_start, count)
            first = _starts(sizes)
            self._spans_in_tokens = first, begins, np.diff(first[self._user_spans])
        return self._spans_in_tokens

    def _extents(
        self,
        segment: NDArray[np.int32],
        row: NDArray[np.int64],
        count: NDArray[np.int64] | int = 1,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the tokens of ``count`` examples from ``row`` on begin, and how many they are."""
        counts = np.broadcast_to(np.asarray(count, dtype=np.int64), row.shape)
        begins = np.empty(len(row), dtype=np.int64)
        lengths = np.empty(len(row), dtype=np.int64)
        for number in np.unique(segment):
            where = np.flatnonzero(segment == number)
            offsets = self._segments[number].offsets
            first, last = offsets[row[where]], offsets[row[where] + counts[where]]
            begins[where], lengths[where] = first, last - first
        return begins, lengths

    def _copy(
        self,
        segment: NDArray[np.int32],
        begins: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> TokenRows:
        """The tokens of pieces of segments, one after another."""
        tokens, targets = (
            self._column(name, segment, begins, lengths) for name in ("tokens", "targets")
        )
        return TokenRows(
            np.empty(0, np.uint16) if tokens is None else tokens,
            _starts(lengths),
            None if targets is None else targets.view(np.bool_),
        )

    def _column(
        self,
        name: str,
        segment: NDArray[np.int32],
        begins: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> NDArray[Any] | None:
        """What `_copy` gives of one column of the segments; None where they have none."""
        held = [getattr(one, name) for one in self._segments]
        if not held or held[0] is None:
            return None
        values = np.empty(int(lengths.sum()), held[0].dtype)
        for number in np.unique(segment).tolist():
            here = segment == number
            part = _pieces(held[number], begins[here], lengths[here])
            if len(part) == len(values):
                return part
            values[np.repeat(here, lengths)] = part
        return values

    def lengths(self, users: ArrayLike, examples: ArrayLike) -> NDArray[np.int64]:
        """int64 (rows,): tokens of each example; reads no tokens. Arguments as in `gather`."""
        segment, row = self._places(users, examples)
        return self._extents(segment, row)[1]

    def _places(
        self, users: ArrayLike, examples: ArrayLike
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The segment of each example and its number there."""
        user, example = require_places(users, examples, self.counts, what="example index")
        number = self._user_first[user] + example
        span = self._user_spans[user]
        several = np.flatnonzero(self._user_spans[user + 1] - span > 1)
        if several.size:
            after = np.searchsorted(self._span_first, number[several], side="right")
            span[several] = after - 1
        row = self._span_start[span] + (number - self._span_first[span])
        return self._span_segment[span], row


def require_places(
    users: ArrayLike, places: ArrayLike, counts: NDArray[np.int64], *, what: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both as int64, else `IndexError`.

    Args:
        users: int64 (rows,), each in [0, len(counts)).
        places: int64 (rows,), each in [0, counts[user]).
        counts: int64 (users,).
        what: a place is, for the message.
    """
    user, place = np.asarray(users, dtype=np.int64), np.asarray(places, dtype=np.int64)
    if user.shape != place.shape or user.ndim != 1:
        raise IndexError(
            f"users and {what}s must be of one length, got shapes {user.shape} and {place.shape}"
        )
    if user.size and not (user.min() >= 0 and user.max() < len(counts)):
        raise IndexError(f"a user index is outside [0, {len(counts)})")
    if not np.all((place >= 0) & (place < counts[user])):
        raise IndexError(f"a {what} is outside its user's [0, count)")
    return user, place


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of consecutive parts begins, and the end: int64 (parts + 1,)."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _pieces(
    values: NDArray[Any], begins: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[Any]:
    """A copy of values[begins[r]:begins[r] + lengths[r]] for each r, one after another.

    Arrow copies piece by piece: no index of every token is made.
    """
    if len(begins) > 1:  # neighbours, such as all of a user's examples, are copied in one go
        first = np.flatnonzero(begins[1:] != (begins + lengths)[:-1]) + 1
        first = np.concatenate([[0], first])
        lengths = np.add.reduceat(lengths, first)
        begins = begins[first]
    views = pa.LargeListViewArray.from_arrays(pa.array(begins), pa.array(lengths), pa.array(values))
    return np.array(views.flatten().to_numpy(zero_copy_only=True))
