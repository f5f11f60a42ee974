"""What a notebook shows of an object: a heading and a table, as HTML that brings its own look."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_CELL = "text-align: {side}; padding: 2px 12px 2px 0"


def html_of(
    heading: str,
    rows: Iterable[Sequence[str]],
    *,
    columns: Sequence[str] = (),
    strong: Iterable[int] = (),
    below: Iterable[str] = (),
) -> str:
    """A heading and a table; its first column holds names, the others stand on the right.

    Args:
        heading: a sentence.
        rows: words for each cell; all are escaped.
        columns: headings; none for names and values, which both stand on the left.
        strong: numbers of the rows that matter most, from 0.
        below: sentences that follow the table.
    """
    bold = set(strong)

    def line(cells: Sequence[str], tag: str, *, number: int | None = None) -> str:
        weight = "; font-weight: bold" if number in bold else ""
        told = (
            f'<{tag} style="{_CELL.format(side="right" if at and columns else "left")}{weight}">'
            f"{escape(cell)}</{tag}>"
            for at, cell in enumerate(cells)
        )
        return f"<tr>{''.join(told)}</tr>"

    head = f"<thead>{line(columns, 'th')}</thead>" if columns else ""
    body = "".join(line(cells, "td", number=number) for number, cells in enumerate(rows))
    after = "".join(f"<p>{escape(sentence)}</p>" for sentence in below)
    return f"<p><b>{escape(heading)}</b></p><table>{head}<tbody>{body}</tbody></table>{after}"
