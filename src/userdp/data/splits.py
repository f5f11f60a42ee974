"""Which user, and which record of a training user, is held out: by per-user hash.

Guarantee (invariant 11): a decision depends on the user's id and on the number of the record
among that user's stored records, never on other users. Adding or removing a user changes
nobody else's split.

The sizes of the splits are therefore random: close to the fractions asked for, not equal.

**The hash** of a user's id is the only randomness that preprocessing has. The salt is public and
fixed, so that a user's split and selection are the same in every store and on every machine,
whoever the other users are. A hash is a pseudonym at best: whoever knows a user's id can compute
it. It protects nobody, and nothing in the privacy claim rests on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
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
    return (np.frombuffer(b"".join(digests), dtype="<u8") >> np.uint64(11)) / 2.0**53


class Split(StrEnum):
    """The three disjoint parts of a store.

    ``TRAIN``: what a run may train on.
    ``HELD_OUT_USERS``: all examples of users of whom nothing is in ``TRAIN``.
    ``HELD_OUT_EXAMPLES``: records of training users that are not in ``TRAIN``.
    """

    TRAIN = "train"
    HELD_OUT_USERS = "held-out-users"
    HELD_OUT_EXAMPLES = "held-out-examples"


class SplitRule(StrEnum):
    """How a training user's records are split; held-out users are by hash always.

    ``HASH``: each record but the first by the user's hash and the record's number.
    ``GIVEN``: as the source says (Stack Overflow: by date). Sources without a say hold none out.
    ``FIRST_PART``: the first tenth of each user's records, rounded up, at most 32, is held out,
    and users of a single record are dropped (Charles et al. 2024, Appendix D, CC-News).

    A record that its source holds out is held out under every rule.
    """

    HASH = "hash"
    GIVEN = "given"
    FIRST_PART = "first-part"


def first_part(records: int) -> int:
    """How many of a user's ``records`` the rule ``FIRST_PART`` holds out.

    >>> [first_part(n) for n in (2, 10, 11, 311, 312, 10**6)]
    [1, 1, 2, 32, 32, 32]
    """
    return min(32, -(-records // 10))


def is_held_out_user(user: bytes, fraction: float) -> bool:
    """Whether a user is held out. ``user`` is a `user_hash`."""
    return uniform(user, b"held-out users") < fraction


def held_out_records(user: bytes, first: int, count: int, *, fraction: float) -> NDArray[np.bool_]:
    """Which of a training user's records ``first``, ``first + 1``, ... are held out.

    With a record go all examples that are cut from it. A training user's first record always
    trains, so that a user with a single one keeps it and no training user is empty.

    Args:
        user: a `user_hash`.
        first: number of the first record among the user's stored ones.
        count: of records; the result is bool (count,).
        fraction: of records to hold out.
    """
    if fraction == 0:
        return np.zeros(count, dtype=bool)
    held_out = uniforms(user, b"held-out record", range(first, first + count)) < fraction
    if first == 0:
        held_out[:1] = False
    return held_out
