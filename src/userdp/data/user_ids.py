"""What is made of a user's id: its hash, and the count of ids that are nearly the same.

**The hash** is the only randomness that preprocessing has (invariant 11). The salt is public and
fixed, so that a user's split and selection are the same in every store and on every machine,
whoever the other users are. A hash is a pseudonym at best: whoever knows a user's id can compute
it. It protects nobody, and nothing in the privacy claim rests on it.

**Ids that are nearly the same**: ``Ann``, ``ann``, ``ann `` and ``ann`` with a zero-width space are
four users to a store, and one person under two ids has two people's privacy budget. Only the
operator can know whether they are one person, so nothing is merged here: they are counted.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
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


_INVISIBLE = {"\u034f", "\u115f", "\u1160", "\u3164", *map(chr, range(0xFE00, 0xFE10))}
"""Letters and marks of Unicode that print nothing: joiners, fillers, variants."""


def near_key(user: bytes) -> bytes:
    r"""What is left of an id without case, Unicode form, spaces and invisible characters.

    Composed and decomposed letters, full and half width, and all spaces, outer and inner ones, are
    taken for the same.

    >>> near_key("Ann  Lee".encode()) == near_key("annlee\u200b".encode())
    True
    """
    if user.isascii():
        return b"".join(user.lower().split())
    text = unicodedata.normalize("NFKC", user.decode(errors="replace")).casefold()
    kept = "".join(character for character in text if not _shows_nothing(character))
    return unicodedata.normalize("NFKC", kept).encode(errors="replace")


def _shows_nothing(character: str) -> bool:
    return character.isspace() or unicodedata.category(character) == "Cf" or character in _INVISIBLE


def near_colliding(users: Sequence[bytes]) -> int:
    """How many of these ids share their `near_key` with another one; operator-only.

    Memory: some 24 bytes per id, so that 10^8 users take 2.4 GB and some minutes. Ids
    are compared by 64-bit hashes of their keys: among 10^8 users the chance that any two differ
    and are counted anyway is 3e-4.

    Args:
        users: distinct ids.

    >>> near_colliding([b"ann", b"Ann", b"bob"])
    2
    """
    # Python's own hash is 64 bits of SipHash, under a key of this process.
    keys = np.fromiter((hash(near_key(user)) for user in users), dtype=np.int64, count=len(users))
    _, counts = np.unique(keys, return_counts=True)
    return int(counts[counts > 1].sum())


def near_hint(count: int) -> str | None:
    """What to tell the operator of a store with so many such users; None where there is none."""
    if not count:
        return None
    return (
        f"{count:,} users have ids that differ from another user's only by case, Unicode form, "
        "spaces or invisible characters. Where two of them are one person, that person has two "
        "users' influence, so the privacy claim, which is per user, does not hold for them as "
        "stated.\nhint: normalise the ids in the source (trim, lower-case, NFC) and prepare again; "
        "nothing was merged"
    )
