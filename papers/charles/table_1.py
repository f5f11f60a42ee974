"""Charles et al. 2024, Table 1: examples, users, and examples per user, by split."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from papers.drawing import draw_table
from papers.stores import open_stores
from papers.table import Row
from userdp.data.statistics import describe


def rows(stores: Mapping[str, Path]) -> list[Row]:
    """A row for each store and each of its splits that has users. Exact, so operator-only.

    ``median`` is the least number of examples that at least half of the users do not exceed.
    """
    return [
        {
            "dataset": name,
            "split": split,
            "examples": part.examples,
            "users": part.users,
            **{key: part.examples_per_user[key] for key in ("min", "median", "max")},
        }
        for name, store in open_stores(stores).items()
        for split, part in describe(store).splits.items()
        if part.users
    ]


draw = partial(
    draw_table, title="examples per user, Charles et al. 2024, Table 1", operator_only=True
)
"""The table as a picture."""
