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
    figure, axes = panels(1, width=8.0)
    for label, line, style, color in federations.lines(rows):
        axes[0].plot(
            [row["alpha"] for row in line],
            [row["accuracy"] for row in line],
            style,
            color=color,
            label=label,
            markersize=4,
        )
    axes[0].set_xscale("log", base=2)
    axes[0].xaxis.set_major_formatter("{x:g}")
    axes[0].set_xlabel("α (1: uniform)")
    axes[0].set_ylabel("test accuracy")
    axes[0].grid(alpha=0.3)
    axes[0].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.suptitle("spread of subjects over silos (Marathe et al. 2023, Figure 3)", fontsize=10)
    save(figure, path)
