"""Which user, and which record of a training user, is held out: by per-user hash.

Guarantee (invariant 11): a decision depends on the user's id and on the number of the record
among that user's stored records, never on other users. Adding or removing a user changes
nobody else's split.

The sizes of the splits are therefore random: close to the fractions asked for, not equal.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from userdp.data.user_ids import uniform, uniforms


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
    """Whether a user is held out. ``user`` is a `user_ids.user_hash`."""
    return uniform(user, b"held-out users") < fraction


def held_out_records(user: bytes, first: int, count: int, *, fraction: float) -> NDArray[np.bool_]:
    """Which of a training user's records ``first``, ``first + 1``, ... are held out.

    With a record go all examples that are cut from it. A training user's first record always
    trains, so that a user with a single one keeps it and no training user is empty.

    Args:
        user: a `user_ids.user_hash`.
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
