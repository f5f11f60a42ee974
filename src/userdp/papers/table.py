"""A figure's numbers: rows of named values, written as CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
