"""Marathe et al. 2023, Figures 1 to 3, drawn from rows that `userdp reproduce` computed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from userdp.reporting.figures.drawing import Row, panels, save

_STYLES = {"tight": "o-", "paper": "x--", "none": "s-"}


def draw_figure_1(rows: Sequence[Row], path: Path) -> None:
    """Accuracy and loss over rounds, a line for each algorithm and accounting."""
    figure, axes = panels(2, width=5.4)
    for axis, key in zip(axes, ("accuracy", "loss"), strict=True):
        for label, line, style, color in _lines(rows):
            axis.plot(
                [row["round"] for row in line],
                [row[key] for row in line],
                style,
                color=color,
                label=label,
                markersize=4,
            )
        axis.set_xlabel("round")
        axis.set_ylabel(f"test {key}")
        axis.grid(alpha=0.3)
    axes[1].set_ylim(top=min(4.0, axes[1].get_ylim()[1]))
    axes[0].legend(fontsize=7)
    figure.suptitle(
        "digits, 16 silos, ε = 4, δ = 1e-5 (Marathe et al. 2023, Figure 1)", fontsize=10
    )
    save(figure, path)


def draw_figure_2(rows: Sequence[Row], path: Path) -> None:
    """The largest group of a mini-batch, a panel for each spread over silos."""
    alphas = list(dict.fromkeys(row["alpha"] for row in rows))
    figure, axes = panels(len(alphas), width=2.6, height=3.0)
    for axis, alpha in zip(axes, alphas, strict=True):
        part = [row for row in rows if row["alpha"] == alpha]
        axis.bar([row["largest_group"] for row in part], [row["mini_batches"] for row in part])
        axis.set_title("uniform" if alpha == 1.0 else f"α = {alpha:g}", fontsize=9)
        axis.set_xlabel("largest group")
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set_ylabel("mini-batches")
    figure.suptitle("subjects in mini-batches of 512 (Marathe et al. 2023, Figure 2)", fontsize=10)
    save(figure, path)


def draw_figure_3(rows: Sequence[Row], path: Path) -> None:
    """Accuracy against α; uniform spread stands at α = 1."""
    figure, axes = panels(1, width=8.0)
    for label, line, style, color in _lines(rows):
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


def _lines(rows: Sequence[Row]) -> list[tuple[str, list[Row], str, str]]:
    """(label, rows, style, colour) of each algorithm and accounting."""
    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    found = []
    for algorithm, accounting in dict.fromkeys((r["algorithm"], r["accounting"]) for r in rows):
        line = [r for r in rows if (r["algorithm"], r["accounting"]) == (algorithm, accounting)]
        flaws = f" (unsound: {line[0]['flaws']})" if line[0]["flaws"] else ""
        label = algorithm if accounting == "none" else f"{algorithm}, {accounting}{flaws}"
        found.append((label, line, _STYLES[accounting], f"C{algorithms.index(algorithm)}"))
    return found
