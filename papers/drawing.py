"""Tables and pictures of figures: rows as CSV, panels of lines, rows as a picture."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.core.files import OPERATOR_FILE, SHAREABLE_FILE, write_file

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure that is computed on the spot.

    Args:
        rows: its numbers: plain dictionaries with the same keys, one for each line of the CSV.
        draw: makes the PNG from them.
    """

    rows: Callable[..., list[Row]]
    draw: Callable[[Sequence[Row], Path], None]


def panels(count: int, *, width: float = 4.2, height: float = 3.6, rows: int = 1) -> Any:
    """(figure, flat list of axes), drawn without a display."""
    from matplotlib.figure import Figure

    columns = math.ceil(count / rows)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def save(figure: Any, path: Path, *, title: str = "", mode: int = SHAREABLE_FILE) -> None:
    """Write a figure, whole or not at all; the ending of ``path`` chooses the kind.

    Args:
        figure: of matplotlib.
        path: ends in png, svg or pdf.
        title: above all panels.
        mode: of the file; one that shows exact numbers about people is its operator's.
    """
    figure.suptitle(title, fontsize=10)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150, format=path.suffix.lower().removeprefix("."))
    write_file(path, drawn.getvalue(), mode=mode)


def write_csv(rows: Sequence[Row], path: Path, *, mode: int = SHAREABLE_FILE) -> None:
    """The rows as CSV, columns in the order of the first row; infinity is written ``inf``."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_file(path, text.getvalue().encode("utf-8"), mode=mode)


def draw_lines(
    rows: Sequence[Row],
    path: Path,
    *,
    title: str,
    panel: Callable[[Row], str],
    y: str,
    y_label: str,
    x_label: Mapping[str, str] | str,
    x: str = "x",
    line: Callable[[Row], str] = lambda row: str(row["series"]),
    standard_error: str | None = None,
    columns: int = 4,
) -> None:
    """Lines in panels, on logarithmic axes (base 2 for the abscissa), written to ``path``.

    Args:
        rows: of all panels.
        path: of the picture.
        title: above all panels.
        panel: the title of the panel that a row belongs to.
        y: the key of the ordinate.
        y_label: its name.
        x_label: the abscissa's name; by the panel's title, if panels differ in it.
        x: the key of the abscissa.
        line: the line of its panel that a row belongs to; also its label.
        standard_error: the key of y's standard error; 95% intervals are drawn then.
        columns: the most panels beside one another.
    """
    names = list(dict.fromkeys(map(panel, rows)))
    figure, axes = panels(len(names), rows=math.ceil(len(names) / columns), height=3.2)
    for axis, name in zip(axes, names, strict=True):
        part = [row for row in rows if panel(row) == name]
        for label in dict.fromkeys(map(line, part)):
            here = [row for row in part if line(row) == label]
            axis.errorbar(
                [row[x] for row in here],
                [row[y] for row in here],
                yerr=[1.96 * row[standard_error] for row in here] if standard_error else None,
                fmt="o-",
                label=label,
                markersize=4,
                capsize=2,
            )
        axis.set_title(name, fontsize=9)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel(x_label if isinstance(x_label, str) else x_label[name])
        axis.set_ylabel(y_label)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    save(figure, path, title=title)


def draw_table(rows: Sequence[Row], path: Path, *, title: str) -> None:
    """Exact rows about people as a table in a picture, which only the operator may read."""
    columns = list(rows[0])
    cells = [[_shown(row[column]) for column in columns] for row in rows]
    titles = [column.replace("_", " ") for column in columns]
    # At a font size of 8 a character takes some 0.08 inches, with the room around a cell's text.
    letters = sum(max(map(len, column)) + 2 for column in zip(titles, *cells, strict=True))
    figure, (axis,) = panels(1, width=max(5.0, 0.08 * letters), height=0.8 + 0.2 * len(rows))
    axis.axis("off")
    table = axis.table(cellText=cells, colLabels=titles, loc="center")
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    table.auto_set_column_width(list(range(len(columns))))
    save(figure, path, title=title, mode=OPERATOR_FILE)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str("" if value is None else value)
