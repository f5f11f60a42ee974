r"""Which examples of a user train: at most G, fixed once, for example-level sampling (ELS).

Charles et al. 2024, Algorithm 1, caps each user at G examples before training begins. Here user
u's capped examples are the first min(n_u, G) of a permutation of that user's n_u examples, keyed
by the user's hash (`userdp.data.hashing`) and a public salt.

Guarantee (invariant 11): user u's selection is a function of that user's id, n_u and G. Adding or
removing another user, or giving users other indices, changes nothing of it. The selection is
public randomness: it amplifies nothing, and no privacy claim rests on it.

The permutation is computed element by element, with no table: memory is O(users) and mapping a
batch costs time in proportion to the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from userdp.data.hashing import mix64
from userdp.vocabulary import require_count

_ROUNDS = 32
_SALT = np.uint64(0x7573657264700001)


class Counted(Protocol):
    """What a selection needs of a split: see `userdp.data.store.StoreSplit`."""

    @property
    def counts(self) -> NDArray[np.int64]: ...
    @property
    def user_hashes(self) -> NDArray[np.uint64]: ...


def require_places(
    users: ArrayLike, places: ArrayLike, counts: NDArray[np.int64], *, what: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both as int64, else `IndexError`.

    Args:
        users: int64 (rows,), each in [0, len(counts)).
        places: int64 (rows,), each in [0, counts[user]).
        counts: int64 (users,).
        what: a place is, for the message.
    """
    user, place = np.asarray(users, dtype=np.int64), np.asarray(places, dtype=np.int64)
    if user.shape != place.shape or user.ndim != 1:
        raise IndexError(
            f"users and {what}s must be of one length, got shapes {user.shape} and {place.shape}"
        )
    if user.size and not (user.min() >= 0 and user.max() < len(counts)):
        raise IndexError(f"a user index is outside [0, {len(counts)})")
    if not np.all((place >= 0) & (place < counts[user])):
        raise IndexError(f"a {what} is outside its user's [0, count)")
    return user, place


@dataclass(frozen=True, slots=True)
class FixedSelection:
    """At most ``group_size`` examples per user, the same at every step. See `fixed_selection`.

    Args:
        group_size: G.
        counts: int64 (users,), examples kept: min(n_u, G).
        full_counts: int64 (users,), n_u.
        user_hashes: uint64 (users, 2).
    """

    group_size: int
    counts: NDArray[np.int64]
    full_counts: NDArray[np.int64]
    user_hashes: NDArray[np.uint64]

    @property
    def left_out(self) -> int:
        """Examples over the cap, over all users. Operator-only."""
        return int(self.full_counts.sum() - self.counts.sum())

    def map(self, users: ArrayLike, ranks: ArrayLike) -> NDArray[np.int64]:
        """The example index of rank ``ranks[r]`` in the selection of user ``users[r]``.

        Args:
            users: int64 (rows,), in [0, users).
            ranks: int64 (rows,), in [0, counts[user]); distinct ranks give distinct examples.

        Raises:
            IndexError: a rank or user is out of range.
        """
        user, rank = require_places(users, ranks, self.counts, what="rank")
        examples = rank.copy()
        over = np.flatnonzero(self.full_counts[user] > self.group_size)
        if over.size:
            chosen = user[over]
            examples[over] = permute(rank[over], self.full_counts[chosen], self.user_hashes[chosen])
        return examples


def fixed_selection(split: Counted, group_size: int) -> tuple[NDArray[np.int64], FixedSelection]:
    """The capped counts of a split, and the map from (user, rank) to the example's index.

    Args:
        split: counts and user hashes.
        group_size: G, at least 1; users with fewer examples keep all, in their order.

    Returns:
        int64 (users,) of min(n_u, G), for a sampler; and the `FixedSelection` whose ``map`` turns
        what the sampler draws into arguments of `StoreSplit.gather`.
    """
    cap = require_count("group_size", group_size)
    counts = np.minimum(split.counts, cap)
    return counts, FixedSelection(cap, counts, split.counts, split.user_hashes)


def permute(
    positions: NDArray[np.int64], sizes: NDArray[np.int64], keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Where keyed permutations of {0, ..., sizes[r] - 1} send ``positions[r]``.

    For each key and size a bijection; over keys, close to uniform.

    Args:
        positions: int64 (rows,), in [0, sizes).
        sizes: int64 (rows,), at least 1.
        keys: uint64 (rows, 2).

    Source: the swap-or-not shuffle of Hoang, Morris and Rogaway 2012 ("An enciphering scheme
    based on a card shuffle"), Figure 1: in each round x is paired with K - x mod n, and the pair
    swaps on the flip of a coin that both share.
    """
    size = sizes.astype(np.uint64)
    place = positions.astype(np.uint64)
    first, second = keys[:, 0] ^ _SALT, keys[:, 1]
    for number in range(_ROUNDS):
        step = mix64(first + np.uint64(0x9E3779B97F4A7C15 * (number + 1) % 2**64))
        partner = (step % size + size - place) % size
        coin = mix64(step ^ second ^ mix64(np.maximum(place, partner)))
        place = np.where(coin >> np.uint64(63), partner, place)
    return place.astype(np.int64)
