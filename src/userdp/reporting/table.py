"""`Table`: one description of a table, for the terminal, for Markdown and for HTML alike.

HTML's rendering is the macro ``templates/table.html.j2``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from userdp.reporting.rendering import Ready, escaped

MISSING = "–"
"""Stands in a cell for a value that is not known, or does not apply."""

_NUMBER = re.compile(r"([-+±−<≤(]*\s*[\d∞–].{0,40}|inf|)$")
"""Begins as a number does and is short, so that a digest of hexadecimal digits is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """What a table says, without how it looks.

    Args:
        rows: a cell for each column. The first names the row. Cells are words, which every
            rendering escapes, unless they are markup of its own (`Ready`, or MarkupSafe's).
        columns: headings; a table without headings has none, and two columns: names and values.
        caption: what is to be seen.
        key: the heading of the column that matters most.
        strong: numbers of the rows that matter most, from 0.
        breaks: numbers of the rows after which a group ends.
    """

    rows: Sequence[Sequence[str]]
    columns: Sequence[str] = ()
    caption: str = ""
    key: str | None = None
    strong: Sequence[int] = ()
    breaks: Sequence[int] = ()

    @property
    def numeric(self) -> tuple[bool, ...]:
        """For each column, whether it holds numbers, which stand on the right."""
        width = len(self.rows[0]) if self.rows else len(self.columns)
        return tuple(
            bool(at) and all(_NUMBER.match(str(row[at])) for row in self.rows)
            for at in range(width)
        )

    @property
    def text(self) -> str:
        """For letters of one width, as on a terminal: columns two spaces apart."""
        lines = [*filter(None, [self.columns]), *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        sides = [">" if numeric else "<" for numeric in self.numeric]
        drawn = ("  ".join(map("{:{}{}}".format, line, sides, widths)).rstrip() for line in lines)
        return "\n".join([*filter(None, [self.caption]), *drawn])

    @property
    def markdown(self) -> Ready:
        """As a pipe table (GitHub Flavored Markdown, Section 4.10)."""
        width = len(self.numeric)
        heading, *rows = (
            f"| {' | '.join(map(escaped, line))} |"
            for line in (self.columns or [""] * width, *self.rows)
        )
        return Ready("\n".join([heading, f"|{'---|' * width}", *rows]))


def table_of(items: Sequence[Mapping[str, Any]], *, sparse: bool = False, **others: Any) -> Table:
    """A table with a row for each item, and a column for each of its names.

    Args:
        items: the cells of a row, by heading; all have the same names. None becomes `MISSING`.
        sparse: leave out columns in which every row is missing or zero.
        others: further fields of `Table`.
    """
    names = tuple(items[0]) if items else ()
    kept = [name for name in names if not sparse or any(one[name] for one in items)]
    rows = [[_cell(one[name]) for name in kept] for one in items]
    return Table(rows=rows, columns=kept, **others)


def _cell(value: Any) -> str:
    """A value in words."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or MISSING
    if value is None or isinstance(value, bool):
        return MISSING if value is None else "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"
    return value if isinstance(value, str) else str(value)  # markup stays what it is
