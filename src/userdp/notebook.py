"""The HTML that a notebook shows of an object: a heading, a table and notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_of(
    heading: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    notes: Iterable[str] = (),
) -> str:
    """A heading, a table and the notes below it; all words are escaped.

    The notebook aligns the cells: it has a style for tables.
    """

    def line(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "".join(line("td", cells) for cells in rows)
    table = f"<table><thead>{line('th', columns)}</thead><tbody>{body}</tbody></table>"
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<p><b>{escape(heading)}</b></p>{table}{below}"
