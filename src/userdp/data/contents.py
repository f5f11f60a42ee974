"""What one generation of a store holds: its users, and the examples of each split.

``users.arrow`` has a row for each user, in the order of their ids' bytes, of the columns `USERS`.
A split's examples lie in plain files of numbers, user after user in the same order: all tokens one
after another, and where each example begins among them (`TokenRows`). So a user's examples of a
split are consecutive, and nothing but their number is needed to find them.

**The content hash** is that of users, splits and tokens. Each (user, split) has a *chain* over its
examples in order, c_0 = 0 and c_{i+1} = BLAKE2b(c_i, lengths, tokens and targets of example i),
which an append prolongs without reading what it covers. The store's hash is SHA-256 over the users
in the order of their ids' bytes: id, and per split the number of examples and the chain.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.core.errors import UseError
from userdp.data.arrow_files import numbers
from userdp.data.meta import StoreMeta
from userdp.data.splits import Split
from userdp.data.user_ids import HASH_BYTES

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
"""``hash`` is the `user_ids.user_hash`, ``records`` counts the user's stored records, ``joined`` is
the number of the store's state in which the user joined."""


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
