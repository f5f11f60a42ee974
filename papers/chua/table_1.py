"""Chua et al. 2024, Table 1: records for training and evaluation, and records per privacy unit.

An example of a store is a record where it is as long as the longest: see `figure_5`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from papers.drawing import draw_table
from papers.stores import open_stores
from papers.table import Row
from userdp.data.splits import Split
from userdp.data.statistics import describe


def rows(stores: Mapping[str, Path]) -> list[Row]:
    """A row for each store; the columns per unit are of training units. Operator-only."""
    table = []
    for name, store in open_stores(stores).items():
        splits = describe(store).splits
        train = splits[Split.TRAIN]
        table.append(
            {
                "dataset": name,
                "training": train.examples,
                "evaluation": sum(part.examples for part in splits.values()) - train.examples,
                "average": train.mean_examples_per_user,
                **{key: train.examples_per_user.get(key) for key in ("max", "min", "median")},
            }
        )
    return table


draw = partial(
    draw_table, title="records per privacy unit, Chua et al. 2024, Table 1", operator_only=True
)
"""The table as a picture."""
