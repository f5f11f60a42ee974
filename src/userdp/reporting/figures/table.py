"""Rows to CSV, and the curves of one group-privacy comparison."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from userdp.accounting.bracket import Bracket
from userdp.accounting.group_privacy import Conversion, group_epsilon, linear_reference

Row = dict[str, Any]


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """The rows as CSV, columns in the order of the first row; infinity is written ``inf``.

    Raises:
        ValueError: there are no rows.
    """
    if not rows:
        raise ValueError("there are no rows to write")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def group_rows(
    group_epsilon_of: Callable[[int], Bracket],
    example_delta_of: Callable[[float], Bracket],
    group_sizes: Sequence[int],
    delta: float,
) -> list[Row]:
    """ε of each group size: by the mixture of Gaussians, and from the example-level curve alone.

    ``epsilon`` and ``epsilon_lower`` are certified. ``epsilon_vadhan`` and
    ``epsilon_best_from_curve`` are upper bounds by group privacy, ``inf`` where the example-level
    δ they need lies below the smallest double. ``epsilon_linear`` is k·ε₁, which bounds nothing.
    """
    known: dict[float, float] = {}

    def curve(epsilon: float) -> float:
        if epsilon not in known:
            known[epsilon] = example_delta_of(epsilon).upper
        return known[epsilon]

    first = group_epsilon_of(1)
    rows = []
    for k in group_sizes:
        bracket = group_epsilon_of(k)
        rows.append(
            {
                "group_size": k,
                "epsilon": bracket.upper,
                "epsilon_lower": bracket.lower,
                "epsilon_vadhan": group_epsilon(curve, k, delta, Conversion.VADHAN),
                "epsilon_best_from_curve": group_epsilon(curve, k, delta, Conversion.BEST),
                "epsilon_linear": linear_reference(first.upper, k),
                "accountant": bracket.accountant,
            }
        )
    return rows
