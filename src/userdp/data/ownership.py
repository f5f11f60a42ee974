"""Which records are stored, and whose each is: those of several users (mail) brought to one.

Two ways, and a store says which (`StoreMeta.ownership`):

* **First owner**: the record is its first owner's alone. The bound then covers what a user wrote as
  first owner; that a text about or to somebody is not theirs is an *assumption*, to be named in
  the report. Adjacency: add or remove one user.
* **Greedy**, with a bound k: records are taken one after another, each if all of its owners still
  have fewer than k taken. So every user owns at most k of what is taken, whoever holds it in the
  store, and example-level sampling with ``group_size >= k`` covers all that a user owns. The
  adjacency is ``fixed-graph``: one user's texts change in any way; which records there are and who
  owns them is public and stays.

Guarantee of the greedy way: which records are taken is a function of the graph and of k alone,
never of a text. So an unusable text (empty, forwarded, too short to train on) takes its place in
the bound like any other and is dropped afterwards, and a record gives one example, its first, since
how many it would give depends on its text.

Source: Ganesh et al. 2025, arXiv:2503.03622, the greedy algorithm for contribution bounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from userdp.core.vocabulary import Adjacency
from userdp.data.records import Drop, Record, Tally
from userdp.data.splits import is_held_out_user, user_hash

FIRST_OWNER = {
    "rule": "first-owner",
    "adjacency": str(Adjacency.ADD_OR_REMOVE),
    "assumption": "a record with several owners was given to the first alone: what it says of the "
    "others is not covered",
}
"""`StoreMeta.ownership` of a store in which records of several users went to the first."""


def bounded(
    records: Iterable[Record], *, records_per_user: int, held_out_users: float, tally: Tally
) -> Iterator[Record]:
    """The records that greedy contribution bounding takes, in their order.

    Guarantee: among what is yielded, each user is an owner of at most ``records_per_user``
    records; the choice depends on owners and order alone. A record of users on both sides of the
    held-out-users split is dropped, so that nothing of a held-out user is trained on.

    Args:
        records: with their owners; texts and ``unusable`` do not matter to the choice.
        records_per_user: k, at least 1.
        held_out_users: the fraction that splits users, by hash.
        tally: counts the drops.
    """
    taken: Counter[bytes] = Counter()
    side: dict[bytes, bool] = {}
    for record in records:
        owners = set(record.owners) or {record.user}
        for owner in owners - side.keys():
            side[owner] = is_held_out_user(user_hash(owner), held_out_users)
        if len({side[owner] for owner in owners}) == 2:
            tally.drop(Drop.BOTH_SIDES)
        elif any(taken[owner] >= records_per_user for owner in owners):
            tally.drop(Drop.OVER_BOUND)
        else:
            taken.update(owners)
            if record.unusable is not None:
                tally.drop(record.unusable)
            else:
                yield record._replace(owners=())
