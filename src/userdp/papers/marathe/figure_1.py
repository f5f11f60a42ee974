"""Marathe et al. 2023, Figure 1: accuracy and loss over rounds, by algorithm and accounting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from userdp.papers.marathe import federations
from userdp.papers.table import Row
from userdp.reporting.drawing import panels, save


def rows() -> list[Row]:
    """Accuracy and loss over rounds, and the bounds of Section 4 beside the last loss."""
    records = federations.data()
    return [
        row
        for algorithm, accounting in federations.cells()
        for row in federations.train_cell(algorithm, accounting, records, alpha=None, every=True)
    ]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Accuracy and loss over rounds, a line for each algorithm and accounting."""
    figure, axes = panels(2, width=5.4)
    for axis, key in zip(axes, ("accuracy", "loss"), strict=True):
        federations.draw_cells(axis, rows, "round", key)
        axis.set_xlabel("round")
    axes[1].set_ylim(top=min(4.0, axes[1].get_ylim()[1]))
    axes[0].legend(fontsize=7)
    figure.suptitle(
        "digits, 16 silos, ε = 4, δ = 1e-5 (Marathe et al. 2023, Figure 1)", fontsize=10
    )
    save(figure, path)
