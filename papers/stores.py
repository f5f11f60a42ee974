"""User stores that a figure counts, opened with a look recorded in the ledger of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from userdp.data.store import UserStore
from userdp.ledger import StoreLedger


def open_stores(stores: Mapping[str, Path]) -> dict[str, UserStore]:
    """The stores by their names.

    Guarantee: all of them can be opened, or none is looked at. Each ledger then says that somebody
    saw exact numbers, before this returns: a constant that is recorded later may have been chosen
    by them.

    Args:
        stores: the folders that `userdp prepare` wrote, by the names that the rows call them.

    Raises:
        UseError: a folder holds no store.
    """
    opened = {name: UserStore.open(path, fixed_graph=True) for name, path in stores.items()}
    for path in stores.values():
        StoreLedger(path).look("papers")
    return opened
