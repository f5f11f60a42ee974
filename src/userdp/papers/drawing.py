"""Panels of lines: what the figures of noise and loss share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from userdp.papers.table import Row
from userdp.reporting.drawing import panels, save


def draw_lines(
    parts: Mapping[str, Sequence[Row]],
    path: Path,
    *,
    title: str,
    y: str,
    y_label: str,
    x_label: Callable[[str], str],
    x: str = "x",
    line: Callable[[Row], str] = lambda row: str(row["series"]),
    standard_error: str | None = None,
    in_rows: int = 1,
) -> None:
    """A panel for each part, on logarithmic axes (base 2 for the abscissa), written to ``path``.

    Args:
        parts: rows by the panel's title.
        path: of the picture.
        title: above all panels.
        y: the key of the ordinate.
        y_label: its name.
        x_label: the abscissa's name, by the panel's title.
        x: the key of the abscissa.
        line: the line of its panel that a row belongs to; also its label.
        standard_error: the key of y's standard error; 95% intervals are drawn then.
        in_rows: how many rows of panels.
    """
    figure, axes = panels(len(parts), rows=in_rows, height=3.6 if in_rows == 1 else 3.0)
    for axis, (name, part) in zip(axes, parts.items(), strict=True):
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
        axis.set_xlabel(x_label(name))
        axis.set_ylabel(y_label)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.suptitle(title, fontsize=10)
    save(figure, path)
