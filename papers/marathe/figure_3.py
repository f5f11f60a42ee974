"""Marathe et al. 2023, Figure 3: accuracy against the spread of subjects over silos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from papers.marathe.drawing import draw_cells
from papers.marathe.federations import ALPHAS, RATES, SEEDS, Size
from papers.marathe.simulation import curve
from papers.table import Row
from userdp.reporting.drawing import panels, save

SIZE = Size()


def rows() -> list[Row]:
    """Accuracy after the last round against α of the subjects' spread over silos."""
    return [
        row
        for seed in SEEDS
        for alpha in ALPHAS
        for (algorithm, accounting), rate in RATES.items()
        for row in curve(
            SIZE,
            algorithm=algorithm,
            accounting=accounting,
            alpha=alpha,
            rate=rate,
            seed=seed,
            every=False,
        )
    ]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Accuracy against α; uniform spread stands at α = 1."""
    figure, (axis,) = panels(1, width=9.0, height=4.6)
    draw_cells(axis, rows, "alpha", "accuracy")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_xlabel("α (1: uniform)")
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.suptitle(
        f"digits, {SIZE.silos} silos, {SIZE.planned_rounds} rounds planned, ε = {SIZE.epsilon:g}: "
        "spread of subjects over silos (Marathe et al. 2023, Figure 3)",
        fontsize=10,
    )
    save(figure, path)
