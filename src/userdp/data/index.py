"""The index of a store: its users, and where their examples lie. One per generation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.data import format as layout
from userdp.data.content import CHAIN_BYTES, content_hash_of
from userdp.data.files import read_columns, read_table, write_arrow
from userdp.data.hashing import HASH_BYTES, user_hash
from userdp.data.splits import Split
from userdp.errors import UseError

SPAN_KINDS = {"split": "u1", "user": "i8", "segment": "i4", "start": "i8", "length": "i8"}
_SPLITS = len(layout.SPLIT_CODES)
USER_KINDS = {
    "hash": pa.binary(HASH_BYTES),
    "records": pa.int64(),
    "chains": pa.binary(CHAIN_BYTES * _SPLITS),
}
_ID_KINDS = {"id": pa.large_binary()}


@dataclass(frozen=True, slots=True)
class Index:
    """The tables of one generation.

    Args:
        ids: users in order of their bytes.
        records: int64 (users,), stored records of each.
        chains: 96 bytes per user; see `userdp.data.content`.
        spans: the columns of spans.arrow.
    """

    ids: list[bytes]
    records: list[int]
    chains: list[bytes]
    spans: dict[str, NDArray[Any]]

    def write(self, folder: Path) -> None:
        """The files of the generation, into a new folder."""
        folder.mkdir(parents=True)
        hashes = [user_hash(user) for user in self.ids]
        columns = {"hash": hashes, "records": self.records, "chains": self.chains}
        users = {name: pa.array(columns[name], kind) for name, kind in USER_KINDS.items()}
        write_arrow(folder / layout.USERS, users)
        write_arrow(folder / layout.USER_IDS, {"id": pa.array(self.ids, _ID_KINDS["id"])}, 0o600)
        write_arrow(folder / layout.SPANS, {k: pa.array(v) for k, v in self.spans.items()})

    @classmethod
    def read(cls, folder: Path) -> Index:
        """What `write` wrote."""
        users = read_table(folder / layout.USERS, USER_KINDS)
        return cls(
            ids=read_ids(folder, users=users.num_rows).to_pylist(),
            records=users.column("records").to_pylist(),
            chains=users.column("chains").to_pylist(),
            spans=read_columns(folder / layout.SPANS, SPAN_KINDS),
        )

    def content_hash(self, *, seq_len: int, loss_mask: bool) -> str:
        """The logical hash of the store that has this index."""
        counts = np.zeros((len(self.ids), _SPLITS), dtype=np.int64)
        np.add.at(counts, (self.spans["user"], self.spans["split"]), self.spans["length"])
        users = zip(self.ids, counts, self.chains, strict=True)
        return content_hash_of(users, seq_len=seq_len, loss_mask=loss_mask)

    def users_of(self, split: Split) -> int:
        """Users with examples in a split."""
        here = self.spans["split"] == layout.SPLIT_CODES[split]
        return len(np.unique(self.spans["user"][here]))

    def without(self, row: int) -> Index:
        """The index of the others: as if the user at ``row`` had never been there."""
        user = self.spans["user"]
        kept = {name: column[user != row] for name, column in self.spans.items()}
        kept["user"] = kept["user"] - (kept["user"] > row)
        return Index(
            ids=[*self.ids[:row], *self.ids[row + 1 :]],
            records=[*self.records[:row], *self.records[row + 1 :]],
            chains=[*self.chains[:row], *self.chains[row + 1 :]],
            spans=kept,
        )


class Known(Protocol):
    """What a store holds of users already."""

    def __call__(self, user: bytes) -> tuple[int, bytes] | None:
        """A user's stored records and chains; None of nobody."""


def known_in(index: Index) -> Known:
    """What a store of this index, which is in memory, holds."""
    row_of = {user: row for row, user in enumerate(index.ids)}

    def known(user: bytes) -> tuple[int, bytes] | None:
        row = row_of.get(user)
        return None if row is None else (index.records[row], index.chains[row])

    return known


class KnownOnDisk:
    """What the generation of an index in ``folder`` holds: looked up there, in log(users) steps.

    Memory is that of the pages touched, whatever the number of users: each process that writes a
    part of a store has one of these.
    """

    def __init__(self, folder: Path) -> None:
        users = read_table(folder / layout.USERS, USER_KINDS)
        self._ids = read_ids(folder, users=users.num_rows)
        self._records, self._chains = users.column("records"), users.column("chains")

    def __call__(self, user: bytes) -> tuple[int, bytes] | None:
        """See `Known`."""
        row = bisect_left(range(len(self._ids)), user, key=lambda row: self._ids[row].as_py())
        if row == len(self._ids) or self._ids[row].as_py() != user:
            return None
        return self._records[row].as_py(), self._chains[row].as_py()


EMPTY = Index([], [], [], {name: np.zeros(0, dtype=kind) for name, kind in SPAN_KINDS.items()})
"""The index of a store that is being made."""


def read_hashes(folder: Path) -> NDArray[np.uint64]:
    """The public-salt hash of each user, by row: uint64 (users, 2)."""
    column = read_table(folder / layout.USERS, USER_KINDS).column("hash")
    if len(column) == 0:
        return np.zeros((0, 2), dtype=np.uint64)
    chunk = column.chunk(0)
    first = chunk.offset * HASH_BYTES
    words = np.frombuffer(chunk.buffers()[1], dtype="<u8", count=2 * len(chunk), offset=first)
    return words.reshape(-1, 2)


def read_ids(folder: Path, *, users: int) -> pa.ChunkedArray:
    """The id of each of so many users, by row; `UseError` if they are another number."""
    column = read_table(folder / layout.USER_IDS, _ID_KINDS).column("id")
    if len(column) != users:
        raise UseError(f"{layout.USER_IDS} names {len(column)} users, and there are {users}")
    return column


def read_spans(folder: Path, *, users: int, segments: Sequence[int]) -> dict[str, NDArray[Any]]:
    """The columns of the span index.

    Guarantee: each span is of a user and a split that there are, and lies in its segment.

    Args:
        folder: of the generation.
        users: how many there are.
        segments: examples of each.

    Raises:
        OSError: the file is not there.
        UseError: it is damaged.
    """
    spans = read_columns(folder / layout.SPANS, SPAN_KINDS)
    split, user, segment = spans["split"], spans["user"], spans["segment"]
    start, length = spans["start"], spans["length"]
    sizes = np.array([*segments, 0], dtype=np.int64)  # the last one stands for no segment
    here = np.where((segment >= 0) & (segment < len(segments)), segment, len(segments))
    sound = (
        (split < _SPLITS)
        & ((user >= 0) & (user < users))
        & ((start >= 0) & (length > 0) & (start <= sizes[here]) & (length <= sizes[here] - start))
    )
    if not sound.all() or np.any(split[1:] < split[:-1]):
        raise UseError(f"{layout.SPANS} names users or examples that are not in the store")
    return spans


def merged(old: Index, new: Index) -> Index:
    """Both in one, with users in order of their ids' bytes.

    The records and chains of a user in both are those of ``new``, which go on from the old ones. A
    user's old spans stand before the new ones, in each split.
    """
    ids = sorted({*old.ids, *new.ids})
    row_of = {user: row for row, user in enumerate(ids)}
    records, chains = [0] * len(ids), [b""] * len(ids)
    parts = []
    for index in (old, new):
        rows = np.array([row_of[user] for user in index.ids], dtype=np.int64)
        for row, stored, chain in zip(rows.tolist(), index.records, index.chains, strict=True):
            records[row], chains[row] = stored, chain
        moved = rows[index.spans["user"]] if len(rows) else index.spans["user"]
        parts.append({**index.spans, "user": moved})
    spans = {name: np.concatenate([part[name] for part in parts]) for name in SPAN_KINDS}
    order = np.lexsort((spans["user"], spans["split"]))  # stable: old spans stay before new ones
    return Index(ids, records, chains, {name: column[order] for name, column in spans.items()})
