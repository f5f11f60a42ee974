"""What the figures share in matplotlib, which is imported only when something is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

GROUP_LINES = (
    ("epsilon", "mixture of Gaussians (ours)", "o-", "tab:blue"),
    ("epsilon_best_from_curve", "best from one (ε, δ)", "^--", "tab:green"),
    ("epsilon_vadhan", "Vadhan's lemma", "s--", "tab:orange"),
    ("epsilon_linear", "k·ε₁ (reference, no bound)", ":", "tab:gray"),
)


def panels(count: int, *, width: float = 4.2, height: float = 3.6, rows: int = 1) -> Any:
    """(figure, flat list of axes), drawn without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = math.ceil(count / rows)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def draw_groups(rows: Sequence[Row], path: Path, *, title: str, noise_label: str) -> None:
    """ε over the group size, a panel for each noise multiplier; lines end where they diverge."""
    noises = sorted({row["noise_multiplier"] for row in rows})
    figure, axes = panels(len(noises))
    for axis, noise in zip(axes, noises, strict=True):
        part = sorted(
            (r for r in rows if r["noise_multiplier"] == noise), key=lambda r: r["group_size"]
        )
        for key, label, style, color in GROUP_LINES:
            finite = [(r["group_size"], r[key]) for r in part if math.isfinite(r[key])]
            axis.plot(*zip(*finite, strict=True), style, color=color, label=label, markersize=4)
            if len(finite) < len(part):
                axis.plot(*finite[-1], "x", color=color, markersize=10, markeredgewidth=2)
        axis.set_yscale("log")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_title(f"{noise_label} = {noise:g}")
        axis.set_xlabel("group size")
        axis.set_ylabel("ε")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.suptitle(f"{title}   (× : diverges after this point)", fontsize=10)
    figure.savefig(path, dpi=150)
