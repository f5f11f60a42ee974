"""What Figures 1 and 3 share: a line for each algorithm and accounting, over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

import numpy as np
from scipy import stats

from papers.marathe.federations import LOCAL_ITEM, NONE, PAPER_LINEAR, PAPER_SQRT, TIGHT
from papers.table import Row

_STYLES = {TIGHT: "o-", PAPER_SQRT: "x--", PAPER_LINEAR: "+:", NONE: "s-"}
_NAMES = {TIGHT: "tight", PAPER_SQRT: "paper, R/√s", PAPER_LINEAR: "paper, R/s"}
_APART = 1.012
"""Between two lines' marks at one place of a logarithmic axis, so that intervals do not hide."""


def draw_cells(axis: Any, rows: Sequence[Row], x: str, y: str, *, marks: bool = True) -> None:
    """A line for each algorithm (its colour) and accounting (its style).

    Args:
        axis: of matplotlib.
        rows: of all seeds.
        x: the column across.
        y: the column up: the mean over seeds, and Student's 95% interval of it.
        marks: whether intervals are marked at each point, for a logarithmic axis; else a band.
    """
    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    cells = dict.fromkeys((r["algorithm"], r["accounting"]) for r in rows)
    for number, (algorithm, accounting) in enumerate(cells):
        line = [r for r in rows if (r["algorithm"], r["accounting"]) == (algorithm, accounting)]
        places = list(dict.fromkeys(row[x] for row in line))
        values = [[row[y] for row in line if row[x] == place] for place in places]
        means, halves = np.array([mean(v) for v in values]), np.array([_half(v) for v in values])
        flaws = f" (unsound: {line[0]['flaws']})" if line[0]["flaws"] else ""
        # The rounds of LocalItemDP are reduced by nothing.
        name = (
            "paper" if algorithm == LOCAL_ITEM and accounting != TIGHT else _NAMES.get(accounting)
        )
        label = algorithm if accounting == NONE else f"{algorithm}, {name}{flaws}"
        style: dict[str, Any] = {"color": f"C{algorithms.index(algorithm)}", "label": label}
        if marks:
            axis.errorbar(
                np.array(places) * _APART ** (number - len(cells) / 2),
                means,
                yerr=halves,
                fmt=_STYLES[accounting],
                markersize=4,
                capsize=2,
                **style,
            )
        else:
            axis.plot(places, means, _STYLES[accounting], markersize=3, **style)
            axis.fill_between(
                places, means - halves, means + halves, color=style["color"], alpha=0.12, lw=0
            )
    axis.set_ylabel(f"test {y}")
    axis.grid(alpha=0.3)


def _half(values: Sequence[float]) -> float:
    """Half of Student's 95% interval of the mean; 0 of one value, which has none."""
    if len(values) < 2:
        return 0.0
    quantile = float(stats.t.ppf(0.975, len(values) - 1))
    return quantile * stdev(values) / math.sqrt(len(values))
