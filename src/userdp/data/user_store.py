"""Read a user store: memory-mapped, zero-copy, at a cost that follows the rows asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from userdp.core.errors import UseError
from userdp.data import meta as layout
from userdp.data.arrow_files import ends_of, members_of, pieces, read_arrow
from userdp.data.contents import USERS, Segment, read_spans
from userdp.data.meta import StoreMeta, read_meta
from userdp.data.splits import Split
from userdp.data.store_folder import finish_erasure


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

    Attributes:
        segments: all of them, for verifying.
    """

    def __init__(self, path: Path, meta: StoreMeta) -> None:
        self.path = path
        self.meta = meta
        self.segments = [Segment.open(path, meta, number) for number in range(len(meta.segments))]
        # Read at once: a later change removes the files.
        self._users = read_arrow(path / meta.index / layout.USERS, USERS)
        self._spans = read_spans(path / meta.index)
        words = self._users["hash"].buffers()[1] or b""
        self._hashes = np.frombuffer(words, "<u8", 2 * len(self._users)).reshape(-1, 2)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"UserStore({str(self.path)!r})"

    def to_dict(self) -> dict[str, Any]:
        """What ``userdp prepare --json`` prints: exact counts."""
        return {"store": str(self.path), "operator_only": True, **self.meta.to_dict()}

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
                hint="prepare it without --records-per-user: each record is its first owner's then",
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
        return self.path / self.meta.index / layout.TOKENIZER

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
        return StoreSplit(split, self.segments, spans, self._hashes)

    def spans(self) -> dict[str, NDArray[Any]]:
        """The columns of the span index."""
        return self._spans

    def user_ids(self) -> list[bytes]:
        """Users' ids as UTF-8, by row. Operator-only."""
        return list(self._users["id"].to_pylist())


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
        self._span_first = ends_of(spans["length"])
        user = spans["user"]
        first_span = np.flatnonzero(np.diff(user, prepend=-1))
        self.rows: NDArray[np.int64] = user[first_span]
        self._user_spans = np.append(first_span, len(user))
        self._token_first = ends_of(spans["tokens"])
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
        counts: NDArray[np.int64] = np.diff(self._token_first[self._user_spans])
        return counts

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
        first, bounds = self._token_first, self._user_spans
        begin = first[bounds[user]] + start
        end = np.minimum(begin + length, first[bounds[user + 1]])
        # The spans that each row crosses, and what it takes of each.
        low = np.searchsorted(first, begin, side="right") - 1
        crossed = np.searchsorted(first, end, side="left") - low
        row, place = members_of(crossed)
        span = low[row] + place
        inside = np.maximum(begin[row], first[span])
        taken = np.minimum(end[row], first[span + 1]) - inside
        segment = self._span_segment[span]
        begins, _ = self._extents(segment, self._span_start[span])
        rows = self._copy(segment, begins + inside - first[span], taken)
        return replace(rows, offsets=ends_of(end - begin))

    def _extents(
        self, segment: NDArray[np.int32], row: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the tokens of each example begin in its segment, and how many they are."""
        begins, ends = np.empty(len(row), dtype=np.int64), np.empty(len(row), dtype=np.int64)
        for number in np.unique(segment):
            where = np.flatnonzero(segment == number)
            offsets = self._segments[number].offsets
            begins[where], ends[where] = offsets[row[where]], offsets[row[where] + 1]
        return begins, ends - begins

    def _copy(
        self, segment: NDArray[np.int32], begins: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> TokenRows:
        """The tokens of pieces of segments, one after another."""
        first = np.flatnonzero(np.diff(segment, prepend=-1)).tolist()
        runs = [
            (self._segments[segment[begin]], slice(begin, end))
            for begin, end in pairwise([*first, len(segment)])
        ]

        def column(name: str) -> NDArray[Any]:
            nothing = [getattr(one, name)[:0] for one in self._segments[:1]] or [np.empty(0, "u2")]
            parts = [pieces(getattr(one, name), begins[at], lengths[at]) for one, at in runs]
            return np.concatenate(parts or nothing)

        masked = bool(self._segments) and self._segments[0].targets is not None
        targets = column("targets").view(np.bool_) if masked else None
        return TokenRows(column("tokens"), ends_of(lengths), targets)

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
