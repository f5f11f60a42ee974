"""The logical hash of a store: of users, splits and tokens, however they lie in files.

Each (user, split) has a *chain* over its examples in order, c_0 = 0 and c_{i+1} = BLAKE2b(c_i,
lengths, tokens and targets of example i). A chain can be prolonged without reading what it
covers, so appending costs time in proportion to what is new. The store's hash is SHA-256 over the
users in the order of their ids' bytes: id, and per split the number of examples and the chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHAIN_BYTES = 32
NO_EXAMPLES = bytes(CHAIN_BYTES)


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


def content_hash_of(
    users: Iterable[tuple[bytes, NDArray[np.int64], bytes]], *, seq_len: int, loss_mask: bool
) -> str:
    """The hash of a whole store.

    Args:
        users: in order of their ids' bytes: id; examples per split, int64 (splits,); the chains
            of all splits, one after another.
        seq_len: of the store.
        loss_mask: of the store.
    """
    whole = hashlib.sha256(f"userdp content 2 {seq_len} {int(loss_mask)}".encode())
    for user, counts, chains in users:
        whole.update(len(user).to_bytes(8, "little") + user)
        whole.update(counts.astype("<i8").tobytes() + chains)
    return whole.hexdigest()
