"""Users whose ids are nearly the same: one person under two ids has two people's privacy budget.

``Ann``, ``ann``, ``ann `` and ``ann`` with a zero-width space are four users to a store, since only
its operator can know whether they are one person. Nothing is merged here: they are counted.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np

_ASCII_SPACES = b" \t\n\r\x0b\x0c"
_INVISIBLE = {"\u034f", "\u115f", "\u1160", "\u3164", *map(chr, range(0xFE00, 0xFE10))}
"""Letters and marks that show nothing and are not of category Cf: joiners, fillers, variants."""


def near_key(user: bytes) -> bytes:
    r"""What is left of an id without case, Unicode form, spaces and invisible characters.

    Composed and decomposed letters, full and half width, and all spaces, outer and inner ones, are
    taken for the same.

    >>> near_key("Ann  Lee".encode()) == near_key("annlee\u200b".encode())
    True
    """
    if user.isascii():
        return user.lower().translate(None, _ASCII_SPACES)
    text = unicodedata.normalize("NFKC", user.decode(errors="replace")).casefold()
    kept = [c for c in text if not _is_blank(c)]
    return unicodedata.normalize("NFKC", "".join(kept)).encode(errors="replace")


def _is_blank(character: str) -> bool:
    return (
        character.isspace()
        or unicodedata.category(character) in ("Cf", "Zs")
        or character in _INVISIBLE
    )


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
