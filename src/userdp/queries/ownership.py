"""What is priced per user promises nothing where a record has several owners."""

from __future__ import annotations

from userdp.data.meta import StoreMeta
from userdp.errors import UseError
from userdp.vocabulary import Adjacency


def require_one_owner(meta: StoreMeta) -> None:
    """`UseError` if a record of the store may count for several users."""
    adjacency = meta.ownership["adjacency"]
    if adjacency != Adjacency.ADD_OR_REMOVE:
        raise UseError(
            "this store's records have several owners, and its claims stand under "
            f"{adjacency} adjacency, not under add-or-remove: the numbers of one user say "
            "something of others there",
            hint="prepare a store with --owners first",
        )
