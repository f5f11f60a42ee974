"""Exact counts of a store, for its operator: users, examples, tokens, examples per user.

Operator-only: these numbers are not differentially private, and nothing that leaves the
operator's hands, nor any constant of a plan, may be derived from them (invariant 4).

The quantiles are those of Charles et al. 2024, Table 1 (min, median, max) and more; the histogram
is that of their Figure 10, over powers of two, both axes logarithmic.

**Ids that are nearly the same**: ``Ann``, ``ann``, ``ann `` and ``ann`` with a zero-width space are
four users to a store, and one person under two ids has two people's privacy budget. Only the
operator can know whether they are one person, so nothing is merged: they are counted.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.data.user_store import UserStore

QUANTILES = {"min": 0.0, "p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9,
             "p99": 0.99, "max": 1.0}  # fmt: skip


def describe(store: UserStore) -> dict[str, Any]:
    """The exact counts of ``store``. Reads the users' table, no tokens.

    Records, users, examples, tokens, and ``near_colliding_users`` as `near_colliding`
    counts; drops, ``seq_len`` and ``vocab_size``; and under ``splits`` those of each split by its
    name, with those of `per_user`.
    """
    meta = store.meta
    named = ("drops", "example_drops", "seq_len", "vocab_size")
    return {
        "operator_only": True,
        **meta.totals,
        **{name: getattr(meta, name) for name in named},
        "splits": {
            name: {**totals, **per_user(store.split(name).counts)}
            for name, totals in meta.totals["splits"].items()
        },
    }


def per_user(counts: NDArray[np.int64]) -> dict[str, Any]:
    """How many examples the users of a split have: from int64 (users,), each >= 1.

    ``examples_per_user`` is of each of the `QUANTILES` the least number of examples that at least
    that part of the users do not exceed; empty without users. ``histogram`` has rows of (least,
    greatest examples, users), up to the last that has users.

    >>> per_user(np.array([1, 2, 3, 40]))["histogram"]
    ((1, 1, 1), (2, 3, 2), (4, 7, 0), (8, 15, 0), (16, 31, 0), (32, 63, 1))
    """
    levels: list[float] = []
    if len(counts):
        levels = np.quantile(counts, [*QUANTILES.values()], method="inverted_cdf").tolist()
    bins = np.bincount(np.frexp(counts.astype(np.float64))[1] - 1)
    return {
        "examples_per_user": dict(zip(QUANTILES, map(int, levels), strict=False)),
        "mean_examples_per_user": float(counts.mean()) if len(counts) else None,
        "histogram": tuple(
            (2**power, 2 ** (power + 1) - 1, int(users)) for power, users in enumerate(bins)
        ),
    }


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
