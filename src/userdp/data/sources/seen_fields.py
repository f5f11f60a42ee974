"""Which fields the rows of a table have, for the message where a required one is never there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from userdp.data.records import Drop
from userdp.data.sources.field_names import told
from userdp.data.sources.rows import Row
from userdp.errors import UseError

_ROWS_SHOWN = 20


class SeenFields:
    """The fields of a table, or of a part of one that another process reads; see `join`.

    Args:
        required: groups of fields; of each group, some row must have one.
    """

    def __init__(self, required: tuple[tuple[str, ...], ...]) -> None:
        self._missing = list(required)
        self._first: list[tuple[str, ...]] = []  # the fields of each of the first rows
        self._rows = self._entries = 0

    def look(self, rows: Sequence[Row | Drop]) -> None:
        """Look at rows until each required field was seen; entries that are no rows are counted."""
        self._entries += len(rows)
        for row in rows:
            if not self._missing:
                return
            if not isinstance(row, Drop):
                self._rows += 1
                self._missing = [group for group in self._missing if not row.keys() & group]
                if self._rows <= _ROWS_SHOWN:
                    self._first.append(tuple(row))

    def facts(self) -> dict[str, Any]:
        """What was seen, as plain values."""
        return {
            "missing": self._missing,
            "first": self._first,
            "rows": self._rows,
            "entries": self._entries,
        }

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> SeenFields:
        """Those whose `facts` these are, which JSON may have held."""
        seen = cls(tuple(tuple(group) for group in facts["missing"]))
        seen._first = [tuple(names) for names in facts["first"]]
        seen._rows, seen._entries = facts["rows"], facts["entries"]
        return seen

    def join(self, after: SeenFields) -> None:
        """Add what was seen of the next part of the same table."""
        self._missing = [group for group in self._missing if group in after._missing]
        self._first = (self._first + after._first)[:_ROWS_SHOWN]
        self._rows += after._rows
        self._entries += after._entries

    def require(self) -> None:
        """`UseError` if no row came of what there was, or none had what is required."""
        if self._entries and not self._rows:
            raise UseError(
                "no line is a JSON object",
                hint="expected one object per line; a JSON array must be split into lines",
            )
        if self._rows and self._missing:
            wanted = " or ".join(repr(name) for name in self._missing[0])
            names = dict.fromkeys(chain.from_iterable(self._first))
            raise UseError(
                f"no record has the field {wanted}; fields there: {told(names, self._missing[0])}",
                hint="name the right ones with --user and --text",
            )
