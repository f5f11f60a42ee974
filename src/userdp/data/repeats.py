"""Keep a public record that repeats across users on one side of the held-out-users split.

Docstrings are copied between modules. A text that stands in training modules and in held-out
ones would make the held-out loss look better than it is; so it is kept on one side, chosen by
the hash of the text, and counted as dropped on the other.

This compares users with each other, which invariant 11 forbids for private data. It is
legitimate here alone because the source is *public* text: the decision depends on public data.
`prepare_store` calls it for sources with ``public = True`` and for no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from userdp.data.hashing import content_hash, uniform, user_hash
from userdp.data.records import Drop, Record, Tally
from userdp.data.splits import is_held_out_user


def on_one_side(
    records: Iterable[Record], *, held_out_users: float, tally: Tally
) -> Iterator[Record]:
    """``records`` without those whose text also stands on the other, chosen side.

    A text on one side only is kept wherever it stands. Holds all records in memory: public
    sources are small.

    Args:
        records: of a public source.
        held_out_users: the fraction that splits users; also the chance that a repeated text
            stays with the held-out users.
        tally: counts the drops as `Drop.REPEATED`.
    """
    held: list[Record] = list(records)
    side: dict[bytes, bool] = {}
    for user in {record.user for record in held}:
        side[user] = is_held_out_user(user_hash(user), held_out_users)
    stands: dict[bytes, set[bool]] = {}
    contents = [content_hash(record.text) for record in held]
    for record, content in zip(held, contents, strict=True):
        stands.setdefault(content, set()).add(side[record.user])
    for record, content in zip(held, contents, strict=True):
        stays = uniform(content, b"repeated record") < held_out_users
        if len(stands[content]) == 2 and side[record.user] is not stays:
            tally.drop(Drop.REPEATED)
        else:
            yield record
