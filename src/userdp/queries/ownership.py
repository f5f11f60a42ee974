"""Queries price one user's numbers; they promise nothing where a record has several owners."""

from __future__ import annotations

from userdp.data.store import UserStore
from userdp.errors import UseError


def require_one_owner(store: UserStore) -> None:
    """`UseError` if a record of the store may count for several users."""
    if store.meta.ownership["adjacency"] != "add-or-remove":
        raise UseError(
            "this store's records have several owners, and its claims stand under "
            f"{store.meta.ownership['adjacency']} adjacency: the numbers of one user say something "
            "of others there",
            hint="prepare a store with --owners first",
        )
