"""Marathe et al. 2023, Figure 1: accuracy and loss over rounds, by algorithm and accounting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from papers.marathe.drawing import draw_cells
from papers.marathe.federations import RATES, SEEDS, Size
from papers.marathe.simulation import curve
from papers.table import Row
from userdp.reporting.drawing import panels, save
from userdp.vocabulary import delta_up

SIZE = Size()


def rows() -> list[Row]:
    """Accuracy and loss over rounds, and the bounds of Section 4 beside each loss."""
    return [
        row
        for seed in SEEDS
        for (algorithm, accounting), rate in RATES.items()
        for row in curve(
            SIZE,
            algorithm=algorithm,
            accounting=accounting,
            alpha=None,
            rate=rate,
            seed=seed,
            every=True,
        )
    ]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Accuracy and loss over rounds, a line for each algorithm and accounting."""
    figure, axes = panels(2, width=6.4, height=4.6)
    for axis, key in zip(axes, ("accuracy", "loss"), strict=True):
        draw_cells(axis, rows, "round", key, marks=False)
        axis.set_xlabel("round")
    axes[1].set_ylim(top=min(4.0, axes[1].get_ylim()[1]))
    figure.legend(
        *axes[0].get_legend_handles_labels(), fontsize=7, ncols=4, loc="outside lower center"
    )
    figure.suptitle(
        f"digits, {SIZE.silos} silos, {SIZE.planned_rounds} rounds planned, ε = {SIZE.epsilon:g}, "
        f"δ = {delta_up(SIZE.delta)} (Marathe et al. 2023, Figure 1)",
        fontsize=10,
    )
    save(figure, path)
