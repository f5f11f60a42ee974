"""Plots: one description, drawn into a page as inline SVG, or side by side into a file.

In a page there are no scripts, no embedded fonts, and colours that follow the page's theme:
matplotlib lays out; its colours are then replaced by the page's custom properties, so that a plot
is readable on a light and on a dark page and in print. Series differ by dash and marker as well as
by colour, and each plot carries a title and a description for those who cannot see it.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from userdp.errors import UseError
from userdp.reporting.drawing import panels, save
from userdp.reporting.markdown import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _FAINT = "#101010", "#c0c0c0"
_SERIES = ("#0000a1", "#0000a2", "#0000a3", "#0000a4", "#0000a5", "#0000a6")
"""Stand-ins: matplotlib draws with these; the page decides what they look like."""

_OF_FILES = ("#0072b2", "#b44a00", "#00785a", "#8a3fa0", "#7a6000", "#4d5a67")
"""The colours of a file, which stands on white: those of the light page."""

_DASHES = ("solid", (0, (6, 2)), (0, (2, 2)), (0, (6, 2, 2, 2)), (0, (1, 1)), (0, (8, 2, 1, 2)))
_OF_REFERENCES = ((0, (1, 2)), (0, (5, 3)), (0, (8, 2, 1, 2)))
_MARKERS = ("o", "s", "^", "D", "v", "P")
_WIDTH, _HEIGHT, _TALL = 5.2, 3.3, 4.7
_LABEL_SIZE = 11


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """A named line of a plot: ``ys[i]`` over ``xs[i]``; missing values are left out.

    ``style`` chooses colour, dash and marker; by default its place in the plot does. A
    ``reference`` is a thin line of the text's colour, to hold the others against. A series without
    a name has none in the legend.
    """

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    marked: bool = True
    style: int | None = None
    reference: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """A plot in words: what it is of, and its axes.

    Args:
        key: distinct on the page, if it is for one; letters, digits and ``-``.
        title: what is to be seen.
        x_label, y_label: with units.
        series: at least one, each with a point.
        level: a dashed horizontal line, with its name.
        connected: lines through the points; False draws points with their names beside them.
        x_limits, y_limits: of the axes; from the data by default.
        tall: higher than wide plots are, for a figure that stands by itself.
        logarithmic: which axes have logarithmic scales: "", "x", "y" or "xy".
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    key: str = ""
    level: tuple[str, float] | None = None
    connected: bool = True
    x_limits: tuple[float, float] | None = None
    y_limits: tuple[float, float] | None = None
    tall: bool = False
    logarithmic: str = ""


def save_plots(plots: Sequence[Plot], path: Path, *, operator_only: bool) -> None:
    """Draw plots side by side into a file, whole or not at all, see `userdp.reporting.drawing`."""
    figure, axes = panels(len(plots), width=_WIDTH, height=_HEIGHT + 0.4)
    for axis, plot in zip(axes, plots, strict=True):
        _fill(axis, plot, colours=_OF_FILES)
        axis.set_title(plot.title)
        if plot.series:  # the legend stands inside: a file has no room for it elsewhere
            axis.legend(loc="best", fontsize=8)
    save(figure, path, operator_only=operator_only)


@lru_cache(maxsize=32)
def draw(plot: Plot) -> str:
    """``plot`` as an ``<svg>`` element to put into a page. Called twice, it gives the same text.

    Raises:
        UseError: a number is not finite, or there is nothing to draw.
    """
    for series in plot.series:
        if not series.xs or not all(map(math.isfinite, series.xs + series.ys)):
            raise UseError(f"plot {plot.key}: series {series.name!r} is empty or not finite")
    if not plot.series:
        raise UseError(f"plot {plot.key}: there is nothing to draw")
    named = [replace(series, name=visible(series.name)) for series in plot.series]  # runs' names
    plot = replace(plot, title=visible(plot.title), series=tuple(named))
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.fonttype": "none",  # text stays text, in the page's own font
        "text.parse_math": False,  # a run may be called "$x$"
        "svg.hashsalt": plot.key,  # the same plot twice is the same file
        "font.family": ["DejaVu Sans"],
        "font.size": _LABEL_SIZE,
        "axes.edgecolor": _FAINT,
        "axes.labelcolor": _INK,
        "axes.titlesize": _LABEL_SIZE,
        "text.color": _INK,
        "xtick.color": _FAINT,
        "xtick.labelcolor": _INK,
        "ytick.color": _FAINT,
        "ytick.labelcolor": _INK,
        "grid.color": _FAINT,
        "grid.linewidth": 0.5,
        "lines.linewidth": 2.0,
    }
    with matplotlib.rc_context(settings):
        height = _TALL if plot.tall else _HEIGHT
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        _fill(axes, plot, colours=_SERIES)
        return _inline(figure, plot)


def _fill(axes: Axes, plot: Plot, *, colours: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    references = iter(_OF_REFERENCES * len(plot.series))
    for place, series in enumerate(plot.series):
        number = place if series.style is None else series.style
        colour = _INK if series.reference else colours[number % len(colours)]
        dashes = next(references) if series.reference else _DASHES[number % len(_DASHES)]
        axes.plot(
            series.xs,
            series.ys,
            label=series.name or "_",  # matplotlib leaves such names out of the legend
            color=colour,
            linestyle=dashes if plot.connected and len(series.xs) > 1 else "none",
            linewidth=1.0 if series.reference else None,
            marker=_MARKERS[number % len(_MARKERS)] if series.marked else "none",
            markersize=5 if plot.connected else 9,
            clip_on=bool(plot.logarithmic),  # there 0 lies infinitely far outside
            zorder=3,
        )
    if plot.level is not None:
        name, level = plot.level
        axes.axhline(level, color=_INK, linestyle=(0, (3, 3)), linewidth=1, label=name)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(True, axis="y")
    axes.margins(x=0.06, y=0.12)
    if plot.x_limits is not None:
        axes.set_xlim(plot.x_limits)
    if plot.y_limits is not None:
        axes.set_ylim(plot.y_limits)
    if not plot.connected:  # points that lie close together must not look far apart
        axes.set_xlim(0, 1.15 * max(x for series in plot.series for x in series.xs) or 1)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    whole = all(float(x).is_integer() for series in plot.series for x in series.xs)
    if "x" in plot.logarithmic:
        axes.set_xscale("log", base=2 if whole else 10)  # counts double, rates are of any size
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=whole))
    if "y" in plot.logarithmic:
        axes.set_yscale("log")
    entries = sum(series.name != "" for series in plot.series) + (plot.level is not None)
    if entries > 1:
        axes.legend(
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            ncols=min(entries, 3),
            frameon=False,
            fontsize=_LABEL_SIZE - 1,
            handlelength=2.6,
        )


def describe(plot: Plot) -> str:
    """``plot`` in words: each series from where to where."""
    parts = [f"{plot.x_label} against {plot.y_label}."]
    for series in plot.series:
        if not series.name:
            continue
        first, last = (series.xs[0], series.ys[0]), (series.xs[-1], series.ys[-1])
        if len(series.xs) == 1:
            parts.append(f"{series.name}: {first[1]:.4g} at {first[0]:.4g}.")
        else:
            parts.append(
                f"{series.name}: from {first[1]:.4g} at {first[0]:.4g} to {last[1]:.4g} at "
                f"{last[0]:.4g}, {len(series.xs)} points."
            )
    if plot.level is not None:
        parts.append(f"{plot.level[0]}: {plot.level[1]:.4g}.")
    return " ".join(parts)


def _inline(figure: Figure, plot: Plot) -> str:
    buffer = io.StringIO()
    figure.savefig(
        buffer,
        format="svg",
        metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
    )
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{plot.key}-', svg)
    svg = re.sub(r"url\(#", f"url(#{plot.key}-", svg)
    svg = re.sub(r'(xlink:)?href="#', f'href="#{plot.key}-', svg)
    svg = svg.replace(_INK, "var(--ink)").replace(_FAINT, "var(--rule)")
    for number, stand_in in enumerate(_SERIES):
        svg = svg.replace(stand_in, f"var(--series-{number + 1})")
    svg = re.sub(r"font-family: [^;\"]+; ?", "", svg)
    opening = svg.index(">")
    box = re.search(r'viewBox="[^"]+"', svg[:opening])
    assert box is not None
    return (
        f'<svg {box.group()} role="img" aria-labelledby="{plot.key}-title {plot.key}-words">'
        f'<title id="{plot.key}-title">{html.escape(plot.title)}</title>'
        f'<desc id="{plot.key}-words">{html.escape(describe(plot))}</desc>' + svg[opening + 1 :]
    )


def points(
    values: Sequence[tuple[float, float | None]],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """``(xs, ys)`` of the pairs that have a y."""
    kept = [(x, y) for x, y in values if y is not None]
    return tuple(x for x, _ in kept), tuple(y for _, y in kept)
