"""Per-user hashes: the only randomness that preprocessing has (invariant 11).

The salt is public and fixed, so that a user's split and selection are the same in every store
and on every machine, whoever the other users are. A hash is a pseudonym at best: whoever knows
a user's id can compute it. It protects nobody, and nothing in the privacy claim rests on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

HASH_BYTES = 16
_SALT = b"userdp public salt, version 1"


def user_hash(user: bytes) -> bytes:
    """The 16-byte keyed BLAKE2b hash of a user's id.

    >>> user_hash(b"dev0001") == user_hash(b"dev0001") != user_hash(b"dev0002")
    True
    """
    return blake2b(user, digest_size=HASH_BYTES, key=_SALT, person=b"userdp user").digest()


def uniform(user: bytes, purpose: bytes, index: int = 0) -> float:
    """A number in [0, 1) that depends on one user's hash, a purpose and an index alone.

    Args:
        user: a `user_hash`.
        purpose: at most 16 bytes; different purposes give independent numbers.
        index: e.g. the number of a record among its user's, >= 0.
    """
    return float(uniforms(user, purpose, [index])[0])


def uniforms(user: bytes, purpose: bytes, indices: Iterable[int]) -> NDArray[np.float64]:
    """`uniform` of each of ``indices``: float64 (indices,)."""
    state = blake2b(user, digest_size=8, person=purpose)
    digests = []
    for index in indices:
        one = state.copy()
        one.update(index.to_bytes(8, "little"))
        digests.append(one.digest())
    numbers = np.frombuffer(b"".join(digests), dtype="<u8")
    return (numbers >> np.uint64(11)) / 2.0**53


def content_hash(text: bytes) -> bytes:
    """The 16-byte hash of a record's text, for de-duplication of *public* text alone."""
    return blake2b(text, digest_size=HASH_BYTES, key=_SALT, person=b"userdp content").digest()


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit numbers that spreads each input bit over all output bits.

    Source: the finaliser of SplitMix64 (Steele, Lea and Flood 2014), variant 13 of Stafford.
    """
    mixed = values ^ (values >> np.uint64(30))
    mixed = mixed * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
