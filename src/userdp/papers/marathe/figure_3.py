"""Marathe et al. 2023, Figure 3: accuracy against the spread of subjects over silos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from userdp.papers.marathe import federations
from userdp.papers.marathe.published import USER_LDP
from userdp.papers.table import Row
from userdp.reporting.drawing import panels, save


def rows() -> list[Row]:
    """Accuracy after the last round against α of the subjects' spread over silos."""
    records = federations.data()
    return [
        row
        for alpha in federations.ALPHAS
        for algorithm, accounting in federations.cells()
        if algorithm != USER_LDP
        for row in federations.train_cell(algorithm, accounting, records, alpha=alpha, every=False)
    ]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Accuracy against α; uniform spread stands at α = 1."""
    figure, (axis,) = panels(1, width=8.0)
    federations.draw_cells(axis, rows, "alpha", "accuracy")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_xlabel("α (1: uniform)")
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.suptitle("spread of subjects over silos (Marathe et al. 2023, Figure 3)", fontsize=10)
    save(figure, path)
