"""ε over the group size by the tight accountant and by group-privacy lemmas: rows and drawing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from userdp.accounting.bracket import Bracket
from userdp.accounting.group_privacy import Conversion, group_epsilon, linear_reference
from userdp.papers.table import Row
from userdp.reporting.drawing import panels, save

GROUP_LINES = (
    ("epsilon", "mixture of Gaussians (ours)", "o-", "tab:blue"),
    ("epsilon_best_from_curve", "best from one (ε, δ)", "^--", "tab:green"),
    ("epsilon_vadhan", "Vadhan's lemma", "s--", "tab:orange"),
    ("epsilon_linear", "k·ε₁ (reference, no bound)", ":", "tab:gray"),
)


def group_rows(
    group_epsilon_of: Callable[[int], Bracket],
    example_delta_of: Callable[[float], Bracket],
    group_sizes: Sequence[int],
    delta: float,
) -> list[Row]:
    """ε of each group size: by the mixture of Gaussians, and from the example-level curve alone.

    ``epsilon`` and ``epsilon_lower`` are certified. ``epsilon_vadhan`` and
    ``epsilon_best_from_curve`` are upper bounds by group privacy, ``inf`` where the example-level
    δ they need lies below the smallest double. ``epsilon_linear`` is k·ε₁, which bounds nothing.
    """
    known: dict[float, float] = {}

    def curve(epsilon: float) -> float:
        if epsilon not in known:
            known[epsilon] = example_delta_of(epsilon).upper
        return known[epsilon]

    first = group_epsilon_of(1)
    rows = []
    for k in group_sizes:
        bracket = group_epsilon_of(k)
        rows.append(
            {
                "group_size": k,
                "epsilon": bracket.upper,
                "epsilon_lower": bracket.lower,
                "epsilon_vadhan": group_epsilon(curve, k, delta, Conversion.VADHAN),
                "epsilon_best_from_curve": group_epsilon(curve, k, delta, Conversion.BEST),
                "epsilon_linear": linear_reference(first.upper, k),
                "accountant": bracket.accountant,
            }
        )
    return rows


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
    save(figure, path)
