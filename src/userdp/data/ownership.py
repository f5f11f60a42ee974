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
from typing import Any

from userdp.core.stages import Progress
from userdp.core.vocabulary import Adjacency
from userdp.data.records import Drop, Record, Tally
from userdp.data.sources.source import Source
from userdp.data.splits import is_held_out_user
from userdp.data.user_ids import content_hash, uniform, user_hash


def settled(
    source: Source,
    tally: Tally,
    progress: Progress,
    *,
    bound: int | None,
    held_out_users: float,
) -> Iterator[Record]:
    """The records of a source that are to be stored, one owner each; the others are counted.

    Args:
        source: see there.
        tally: the books.
        progress: shows how far reading is.
        bound: k of the greedy way; None: each record is its first owner's.
        held_out_users: the fraction that splits users, by hash.
    """
    records = source.records(tally, progress, all_owned=bound is not None)
    if bound is not None:
        records = bounded(
            records, records_per_user=bound, held_out_users=held_out_users, tally=tally
        )
    return on_one_side(records, held_out_users, tally) if source.public else records


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


def greedy_facts(records_per_user: int) -> dict[str, Any]:
    """`StoreMeta.ownership` of a store whose records were taken greedily."""
    return {
        "rule": "greedy",
        "adjacency": str(Adjacency.FIXED_GRAPH),
        "records_per_user": records_per_user,
    }


def first_owner_facts() -> dict[str, Any]:
    """`StoreMeta.ownership` of a store in which records of several users went to the first."""
    return {
        "rule": "first-owner",
        "adjacency": str(Adjacency.ADD_OR_REMOVE),
        "assumption": "a record with several owners was given to the first alone: what it says of "
        "the others is not covered",
    }


def on_one_side(records: Iterable[Record], held_out_users: float, tally: Tally) -> Iterator[Record]:
    """Public ``records`` without those whose text also stands on the other, chosen side.

    Docstrings are copied between modules. A text that stands in training modules and in held-out
    ones would make the held-out loss look better than it is; so it is kept on one side, chosen by
    the hash of the text, and counted as dropped on the other. This compares users with each other,
    which invariant 11 forbids for private data: it is legitimate for *public* text alone.

    Holds all records in memory: public sources are small.

    Args:
        records: of a public source.
        held_out_users: the fraction that splits users; also the chance that a repeated text
            stays with the held-out users.
        tally: counts the drops as `Drop.REPEATED`.
    """
    held = [(record, content_hash(record.text)) for record in records]
    users = {record.user for record, _ in held}
    side = {user: is_held_out_user(user_hash(user), held_out_users) for user in users}
    stands: dict[bytes, set[bool]] = {}
    for record, content in held:
        stands.setdefault(content, set()).add(side[record.user])
    for record, content in held:
        stays = uniform(content, b"repeated record") < held_out_users
        if len(stands[content]) == 2 and side[record.user] is not stays:
            tally.drop(Drop.REPEATED)
        else:
            yield record
