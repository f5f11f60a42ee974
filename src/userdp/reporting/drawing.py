"""Plots of a page, by matplotlib, which is imported only when something is drawn.

A page embeds matplotlib's own SVG as an image, which its style sheet inverts in the dark. Series
differ by dash as well as by colour.
"""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from userdp.core.errors import UseError
from userdp.reporting.rendering import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DASHES = ("solid", (0, (6, 2)), (0, (2, 2)), (0, (6, 2, 2, 2)), (0, (1, 1)), (0, (8, 2, 1, 2)))
_COLOURS = ("#0072b2", "#b44a00", "#00785a", "#8a3fa0", "#7a6000", "#4d5a67")
MOST_SERIES = len(_COLOURS)
"""More lines than there are colours would not be told apart."""
_MOST_MARKS = 15
"""Lines with more points have no marks: these would run into each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """A named line of a plot: ``ys[i]`` over ``xs[i]``.

    A ``reference`` is a thin grey line, to hold the others against.
    """

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    reference: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """A plot in words: its subject, its axes with units, its lines.

    Args:
        title: what is to be seen.
        x_label, y_label: with units.
        series: at least one, each with a point.
        connected: lines through the points; False draws points.
        logarithmic: which axes have logarithmic scales: "", "x", "y" or "xy".
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    connected: bool = True
    logarithmic: str = ""

    @property
    def in_words(self) -> str:
        """For those who cannot see it."""
        names = ", ".join(visible(one.name) for one in self.series)
        return f"{self.title}: {self.y_label}, against {self.x_label}; lines: {names}."


@lru_cache(maxsize=32)
def image(plot: Plot) -> str:
    """``plot`` as the address of an SVG image that holds it. Called twice, it gives the same text.

    Raises:
        UseError: a number is not finite, or there is nothing to draw.
    """
    for series in plot.series:
        if not series.xs or not all(map(math.isfinite, series.xs + series.ys)):
            raise UseError(f"plot {plot.title}: series {series.name!r} is empty or not finite")
    import matplotlib

    settings: Any = {
        "svg.fonttype": "none",  # text stays text
        "text.parse_math": False,  # a run may be called "$x$"
        "svg.hashsalt": plot.title,  # the same plot twice is the same file
        "font.size": 11,
    }
    with matplotlib.rc_context(settings):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.2, 4.2), layout="constrained")
        _fill(figure.subplots(), plot)
        drawn = io.BytesIO()
        metadata = {"Date": None, "Creator": None}
        figure.savefig(drawn, format="svg", transparent=True, metadata=metadata)
    return "data:image/svg+xml;base64," + base64.b64encode(drawn.getvalue()).decode()


def _fill(axes: Axes, plot: Plot) -> None:
    for number, series in enumerate(plot.series):
        dashes = _DASHES[number % len(_DASHES)] if plot.connected else "none"
        axes.plot(
            series.xs,
            series.ys,
            label=visible(series.name),
            color="#4d5a67" if series.reference else _COLOURS[number % len(_COLOURS)],
            linestyle=dashes,
            linewidth=1.0 if series.reference else 2.0,
            marker="o" if len(series.xs) <= _MOST_MARKS and not series.reference else None,
        )
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(visible=True, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    for name in "xy":
        if name in plot.logarithmic:
            getattr(axes, f"set_{name}scale")("log")
    if len(plot.series) > 1:
        axes.legend(fontsize=9)
