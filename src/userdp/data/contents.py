"""What one generation of a store holds: segments of examples, and the index from users to them.

**The content hash** is that of users, splits and tokens, however they lie in files. Each (user,
split) has a *chain* over its examples in order, c_0 = 0 and c_{i+1} = BLAKE2b(c_i, lengths, tokens
and targets of example i). A chain can be prolonged without reading what it covers, so appending
costs time in proportion to what is new. The store's hash is SHA-256 over the users in the order of
their ids' bytes: id, and per split the number of examples and the chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.data import meta as layout
from userdp.data.arrow_files import ends_of, numbers, pieces, read_arrow, write_arrow
from userdp.data.meta import StoreMeta
from userdp.data.user_ids import HASH_BYTES, near_colliding, user_hash

CHAIN_BYTES = 32
NO_EXAMPLES = bytes(CHAIN_BYTES)
_SPLITS = len(layout.SPLIT_CODES)
NOTHING = NO_EXAMPLES * _SPLITS
"""The chains of a user without examples."""

SPANS = pa.schema(
    [
        ("split", pa.uint8()),
        ("user", pa.int64()),
        ("segment", pa.int32()),
        ("start", pa.int64()),
        ("length", pa.int64()),
        ("tokens", pa.int64()),
    ]
)
USERS = pa.schema(
    [
        ("id", pa.large_binary()),
        ("hash", pa.binary(HASH_BYTES)),
        ("records", pa.int64()),
        ("chains", pa.binary(len(NOTHING))),
    ]
)


@dataclass(frozen=True, slots=True)
class Segment:
    """Examples, one after another; those of a store lie in a memory map.

    Args:
        tokens: uint16 or uint32, flat.
        offsets: int64 (examples + 1,): where each example begins among the tokens.
        targets: uint8, parallel to ``tokens``; None where the store has no loss mask.
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]
    targets: NDArray[np.uint8] | None

    @classmethod
    def open(cls, store: Path, meta: StoreMeta, number: int) -> Self:
        """The segment at place ``number`` of `StoreMeta.segments`.

        Raises:
            OSError: its file is not there.
            UseError: it is damaged.
        """
        schema = {"tokens": pa.large_list(pa.type_for_alias(meta.token_dtype))}
        if meta.loss_mask:
            schema["targets"] = pa.large_list(pa.uint8())
        rows = read_arrow(store / meta.files[number], pa.schema(schema), whole=False)
        columns = {name: numbers(rows[name].values) for name in schema}
        offsets = numbers(rows["tokens"].offsets)
        return cls(columns["tokens"], offsets, columns.get("targets"))

    def write(self, file: Path) -> None:
        """Write what `open` reads."""
        columns = {"tokens": self.tokens, "targets": self.targets}
        offsets = pa.array(self.offsets)
        write_arrow(
            file,
            {
                name: pa.LargeListArray.from_arrays(offsets, pa.array(values))
                for name, values in columns.items()
                if values is not None
            },
        )

    def only(self, begins: NDArray[np.int64], counts: NDArray[np.int64]) -> Segment:
        """Examples ``begins[i]`` to ``begins[i] + counts[i]``, for each i, one after another."""
        where = self.offsets[begins], self.offsets[begins + counts] - self.offsets[begins]
        lengths = pieces(np.diff(self.offsets), begins, counts)
        targets = None if self.targets is None else pieces(self.targets, *where)
        return Segment(pieces(self.tokens, *where), ends_of(lengths), targets)


@dataclass(frozen=True, slots=True)
class Index:
    """The users of a generation, and where their examples lie.

    Args:
        ids: users, in order of their bytes but while a store is being written.
        records: stored records of each.
        chains: 96 bytes of each, a chain for each split.
        spans: the columns of spans.arrow, ordered by (split, user).
    """

    ids: Sequence[bytes]
    records: Sequence[int]
    chains: Sequence[bytes]
    spans: dict[str, NDArray[Any]]

    @classmethod
    def empty(cls) -> Self:
        """Nobody's."""
        return cls([], [], [], {one.name: np.zeros(0, one.type.to_pandas_dtype()) for one in SPANS})

    def write(self, folder: Path) -> None:
        """The files of the index, into a new folder."""
        folder.mkdir(parents=True)
        columns = {
            "id": self.ids,
            "hash": [user_hash(user) for user in self.ids],
            "records": self.records,
            "chains": self.chains,
        }
        users = {one.name: pa.array(columns[one.name], one.type) for one in USERS}
        write_arrow(folder / layout.USERS, users, 0o600)
        write_arrow(folder / layout.SPANS, {k: pa.array(v) for k, v in self.spans.items()})

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What `write` wrote."""
        users = read_arrow(folder / layout.USERS, USERS)
        ids, records, chains = (users[name].to_pylist() for name in ("id", "records", "chains"))
        return cls(ids, records, chains, read_spans(folder))

    def only(self, rows: Sequence[int]) -> Index:
        """The index of these users alone, in this order: as if the others had never been there.

        Each user's spans keep their order.
        """
        place = np.full(len(self.ids), -1)
        place[rows] = np.arange(len(rows))
        user = place[self.spans["user"]]
        by = np.lexsort((user, self.spans["split"]))
        by = by[user[by] >= 0]
        return Index(
            [self.ids[row] for row in rows],
            [self.records[row] for row in rows],
            [self.chains[row] for row in rows],
            {name: column[by] for name, column in {**self.spans, "user": user}.items()},
        )

    def totals(self) -> dict[str, Any]:
        """`StoreMeta.totals`, but for the records that were read."""
        splits = {}
        for split, code in layout.SPLIT_CODES.items():
            own = self.spans["split"] == code
            user, length, tokens = (self.spans[k][own] for k in ("user", "length", "tokens"))
            splits[str(split)] = {
                "users": len(np.unique(user)),
                "examples": int(length.sum()),
                "tokens": int(tokens.sum()),
            }
        return {
            "records_stored": sum(self.records),
            "users": len(self.ids),
            "near_colliding_users": near_colliding(self.ids),
            "examples": int(self.spans["length"].sum()),
            "tokens": int(self.spans["tokens"].sum()),
            "splits": splits,
        }

    def content_hash(self, meta: StoreMeta) -> str:
        """The content hash of the store that has this index."""
        counts = np.zeros((len(self.ids), _SPLITS), dtype="<i8")
        np.add.at(counts, (self.spans["user"], self.spans["split"]), self.spans["length"])
        head = f"userdp content 2 {meta.seq_len} {int(meta.loss_mask)}"
        whole = hashlib.sha256(head.encode())
        for user, own, chains in zip(self.ids, counts, self.chains, strict=True):
            whole.update(len(user).to_bytes(8, "little") + user + own.tobytes() + chains)
        return whole.hexdigest()


def read_spans(folder: Path) -> dict[str, NDArray[Any]]:
    """The columns of the span index, over a memory map."""
    rows = read_arrow(folder / layout.SPANS, SPANS)
    return {name: numbers(rows[name]) for name in SPANS.names}


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
