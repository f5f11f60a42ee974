"""The rows of a campaign that goes on where it stopped: JSON lines, of which a kill may cut one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def now() -> str:
    """The date and time of a row, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def whole_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows that are there, oldest first; a line that a kill cut short is none."""
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        yield row


def add_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row, so that a kill loses no more than the case that runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
