"""A figure's numbers: rows of named values, written as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from userdp.files import SHAREABLE_FILE, write_file

Row = dict[str, Any]


def write_csv(rows: Sequence[Row], path: Path, *, mode: int = SHAREABLE_FILE) -> None:
    """The rows as CSV, columns in the order of the first row; infinity is written ``inf``.

    Args:
        rows: all with the same columns.
        path: of the file, which is written whole or not at all.
        mode: of the file.

    Raises:
        ValueError: there are no rows.
    """
    if not rows:
        raise ValueError("there are no rows to write")
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_file(path, text.getvalue().encode("utf-8"), mode=mode)
