"""What one generation of a store holds: its users, and the examples of each split.

``users.arrow`` has a row for each user, in the order of their ids' bytes, of the columns `USERS`.
A split's examples lie in plain files of numbers, user after user in the same order: all tokens one
after another, and where each example begins among them (`TokenRows`). So a user's examples of a
split are consecutive, and nothing but their number is needed to find them. Rows of unequal length
are flat arrays and their lengths everywhere (`pieces`, `merged`, `ends_of`, `members_of`).

**The content hash** is that of users, splits and tokens. Each (user, split) has a *chain* over its
examples in order, c_0 = 0 and c_{i+1} = BLAKE2b(c_i, lengths, tokens and targets of example i),
which an append prolongs without reading what it covers. The store's hash is SHA-256 over the users
in the order of their ids' bytes: id, and per split the number of examples and the chain.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.core.errors import UseError, kind_of
from userdp.core.files import OPERATOR_FILE, whole_file
from userdp.data.splits import HASH_BYTES, Split
from userdp.data.store_meta import StoreMeta

CHAIN_BYTES = 32
NO_EXAMPLES = bytes(CHAIN_BYTES)
"""The chain of no examples."""


def chain_of(split: Split) -> str:
    """The column of the chains of a split; its numbers of examples are in the column ``split``."""
    return f"{split} chain"


USERS = pa.schema(
    [
        ("id", pa.large_binary()),
        ("hash", pa.binary(HASH_BYTES)),
        ("records", pa.int64()),
        ("joined", pa.int64()),
        *((str(split), pa.int64()) for split in Split),
        *((chain_of(split), pa.binary(CHAIN_BYTES)) for split in Split),
    ]
)
"""``hash`` is the `splits.user_hash`, ``records`` counts the user's stored records, ``joined`` is
the number of the store's state in which the user joined."""


def write_arrow(path: Path, table: pa.RecordBatch) -> None:
    """One Arrow IPC file of one record batch, for its operator; written whole or not at all."""
    with whole_file(path, mode=OPERATOR_FILE) as sink, pa.ipc.new_file(sink, table.schema) as file:
        file.write_batch(table)


def read_arrow(path: Path, schema: pa.Schema) -> pa.RecordBatch:
    """What `write_arrow` wrote, over a memory map: nothing is copied.

    Guarantee: it has exactly these columns, within the bytes of the file: Arrow itself believes
    what a file says of its lengths, and reads beyond the end of one that was cut short.

    Args:
        path: of the file.
        schema: the names and types of its columns.

    Raises:
        OSError: there is no such file, or the disk refused.
        UseError: it is damaged.
    """
    try:
        with pa.memory_map(str(path)) as file:
            batch = pa.ipc.open_file(file).get_batch(0)
        batch.validate(full=True)
    # Arrow's own errors are of the system's kinds too, but for the number that those have.
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UseError(f"{path.name} is no file of Arrow: {kind_of(error)}") from error
    if batch.schema != schema:
        raise UseError(f"{path.name} has other columns than a store's has")
    return batch


def numbers(column: pa.Array) -> NDArray[Any]:
    """Arrow's numbers where they lie: its own `to_numpy` would import pandas (2 s)."""
    kind = np.dtype(column.type.to_pandas_dtype())
    if not len(column):
        return np.zeros(0, kind)
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows of tokens of unequal length: all examples of a split, over memory maps, or some copied.

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

    @classmethod
    def open(cls, folder: Path, split: Split, meta: StoreMeta) -> Self:
        """The examples of a split of the generation in ``folder``.

        Raises:
            OSError: a file is not there.
            UseError: one has another length than the store says.
        """
        kinds, size = _kinds(meta), meta.totals["splits"][split]
        columns = {name: _mapped(folder / f"{split}.{name}", kinds[name]) for name in kinds}
        lengths = dict.fromkeys(kinds, size["tokens"]) | {"offsets": size["examples"] + 1}
        if {name: len(column) for name, column in columns.items()} != lengths:
            raise UseError(f"a file of the split {split} has another length than was written")
        if columns["offsets"][-1] != size["tokens"]:
            raise UseError(f"{split}.offsets leads beyond the tokens")
        return cls(columns["tokens"], columns["offsets"], columns.get("targets"))


def _kinds(meta: StoreMeta) -> dict[str, str]:
    """The files of a split, and the type of the numbers in each."""
    kinds = {"tokens": meta.token_dtype, "offsets": "<i8"}
    return {**kinds, "targets": "?"} if meta.loss_mask else kinds


def _mapped(file: Path, kind: str) -> NDArray[Any]:
    try:
        # `asarray`, since slices of NumPy's own class of maps are slow; an empty file has no map.
        return np.asarray(np.memmap(file, kind, "r")) if file.stat().st_size else np.zeros(0, kind)
    except ValueError as error:  # no whole number of values
        raise UseError(f"{file.name} was cut short") from error


def pieces(
    values: NDArray[Any], begins: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[Any]:
    """``values[begins[i] : begins[i] + lengths[i]]`` for each i, one after another."""
    places = merged(begins, lengths)
    return np.concatenate([values[:0], *(values[begin:end] for begin, end in places)])


def merged(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """(begin, end) of consecutive stretches; those that touch, such as a user's examples, as one.

    >>> list(merged(np.array([0, 3, 9]), np.array([3, 2, 1])))
    [(0, 5), (9, 10)]
    """
    ends = begins + lengths
    apart = begins[1:] != ends[:-1]
    first = np.append(begins[:1], begins[1:][apart])
    last = np.append(ends[:-1][apart], ends[-1:])
    return zip(first.tolist(), last.tolist(), strict=True)


def ends_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where consecutive parts begin and end: int64 (parts + 1,), from 0 on."""
    return np.append(0, np.cumsum(lengths, dtype=np.int64))


def members_of(sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each member of consecutive groups: the number of its group, and its place in the group.

    >>> members_of(np.array([2, 0, 3]))
    (array([0, 0, 2, 2, 2]), array([0, 1, 0, 1, 2]))
    """
    group = np.repeat(np.arange(len(sizes)), sizes)
    return group, np.arange(len(group)) - ends_of(sizes)[group]


class ExampleFiles:
    """The files of a split, while they are written; what `TokenRows.open` reads.

    Args:
        folder: of the new generation.
        split: whose examples they are.
        meta: of the store.

    Attributes:
        tokens: how many were written.
    """

    def __init__(self, folder: Path, split: Split, meta: StoreMeta) -> None:
        self.tokens, self._kinds = 0, _kinds(meta)
        self._files = {
            name: (folder / f"{split}.{name}").open("xb", buffering=2**20) for name in self._kinds
        }
        self._write(offsets=np.zeros(1))

    def add(
        self, tokens: NDArray[Any], lengths: NDArray[np.int64], targets: NDArray[Any] | None
    ) -> None:
        """Write examples behind those that were written."""
        self._write(tokens=tokens, offsets=self.tokens + np.cumsum(lengths), targets=targets)
        self.tokens += len(tokens)

    def _write(self, **columns: NDArray[Any] | None) -> None:
        for name, values in columns.items():
            if values is not None:
                self._files[name].write(np.ascontiguousarray(values, self._kinds[name]).data)

    def close(self) -> None:
        """Force all to the disk."""
        for file in self._files.values():
            if not file.closed:
                file.flush()
                os.fsync(file.fileno())
                file.close()


def content_hash(users: pa.RecordBatch, meta: StoreMeta) -> str:
    """The content hash of the store that has these users."""
    whole = hashlib.sha256(f"userdp content 2 {meta.seq_len} {int(meta.loss_mask)}".encode())
    counts = np.stack([numbers(users[split]) for split in Split], axis=1).astype("<i8")
    chains = zip(*(users[chain_of(split)] for split in Split), strict=True)
    for user, own, chain in zip(users["id"], counts, chains, strict=True):
        name = user.as_py()
        whole.update(len(name).to_bytes(8, "little") + name + own.tobytes())
        whole.update(b"".join(one.as_py() for one in chain))
    return whole.hexdigest()


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
