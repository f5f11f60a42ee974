"""The index of a store: its users, where their examples lie, and the hash of what it holds.

**The content hash** is that of users, splits and tokens, however they lie in files. Each (user,
split) has a *chain* over its examples in order, c_0 = 0 and c_{i+1} = BLAKE2b(c_i, lengths, tokens
and targets of example i). A chain can be prolonged without reading what it covers, so appending
costs time in proportion to what is new. The store's hash is SHA-256 over the users in the order of
their ids' bytes: id, and per split the number of examples and the chain.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.data import meta as layout
from userdp.data.files import read_columns, read_table, write_arrow
from userdp.data.hashing import HASH_BYTES, user_hash
from userdp.errors import UseError

CHAIN_BYTES = 32
NO_EXAMPLES = bytes(CHAIN_BYTES)
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
        chains: 96 bytes per user, a chain for each split.
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
        """The content hash of the store that has this index."""
        counts = np.zeros((len(self.ids), _SPLITS), dtype="<i8")
        np.add.at(counts, (self.spans["user"], self.spans["split"]), self.spans["length"])
        whole = hashlib.sha256(f"userdp content 2 {seq_len} {int(loss_mask)}".encode())
        for user, own, chains in zip(self.ids, counts, self.chains, strict=True):
            whole.update(len(user).to_bytes(8, "little") + user + own.tobytes() + chains)
        return whole.hexdigest()

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


class Known:
    """What the index in ``folder`` holds of each user: looked up there, in log(users) steps.

    Memory is that of the pages touched, whatever the number of users: each process that writes a
    part of a store has one of these. Without a folder nobody is known.
    """

    def __init__(self, folder: Path | None) -> None:
        self._users = 0
        if folder is not None:
            users = read_table(folder / layout.USERS, USER_KINDS)
            self._users = len(users)
            self._ids = read_ids(folder, users=self._users)
            self._records, self._chains = users.column("records"), users.column("chains")

    def __call__(self, user: bytes) -> tuple[int, bytes]:
        """A user's stored records and chains; of somebody new, none."""
        row = bisect_left(range(self._users), user, key=lambda row: self._ids[row].as_py())
        if row == self._users or self._ids[row].as_py() != user:
            return 0, NO_EXAMPLES * _SPLITS
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


def prolong(
    chain: bytes,
    tokens: NDArray[Any],
    lengths: NDArray[np.int64],
    targets: NDArray[np.uint8] | None = None,
) -> bytes:
    """``chain`` with further examples.

    Args:
        chain: 32 bytes; `NO_EXAMPLES` to begin with.
        tokens: flat; hashed as 32-bit numbers, so that the store's type of a token is no matter.
        lengths: int64 (examples,), of each example; their sum is ``len(tokens)``.
        targets: uint8, parallel to ``tokens``, where the store has a loss mask.
    """
    content = tokens.astype("<u4", copy=False).tobytes()
    sizes = lengths.astype("<u4", copy=False).tobytes()
    marks = None if targets is None else targets.tobytes()
    # A state is copied, since making one anew takes longer than hashing an example.
    empty = hashlib.blake2b(digest_size=CHAIN_BYTES)
    begin = 0
    for number, end in enumerate(np.cumsum(lengths).tolist()):
        state = empty.copy()
        state.update(chain + sizes[4 * number : 4 * number + 4] + content[4 * begin : 4 * end])
        if marks is not None:
            state.update(marks[begin:end])
        chain = state.digest()
        begin = end
    return chain
