"""Charles et al. 2024, Figure 2: noise variance of ELS and ULS under a compute budget.

K = 32, T = 1000, N = 1024 users are the paper's, with δ = 1e-6 and L_ELS = 10 from Appendix B.
(a) ELS with B = 64, over G_ELS. (b) over B: ELS with G_ELS = K and p = B/(K N); ULS with M = 16 and
G_ULS = B/M, twice: L_ULS = L_ELS, and L_ULS = L_ELS/√G_ULS. The values of ε are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from papers.charles.variances import compare, series
from papers.drawing import draw_lines
from papers.table import Row

_BUDGET, _COHORT = 64, 16


def rows(
    *,
    epsilons: Sequence[float] = (1.0, 4.0, 16.0),
    group_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32),
    budgets: Sequence[int] = (16, 32, 64, 128, 256, 512),
) -> list[Row]:
    """A row for each panel, ε, series and abscissa (G_ELS in panel a, B in panel b)."""
    rows: list[Row] = []
    for epsilon in epsilons:
        for group in group_sizes:
            part = series("ELS", epsilon, _BUDGET, group=group)
            rows.append({"panel": "a", "epsilon": epsilon, "x": group, **part})
        for budget in budgets:
            rows += [
                {"panel": "b", "epsilon": epsilon, "x": budget, **part}
                for part in compare(epsilon, budget, _COHORT)
            ]
    return rows


def _epsilon(row: Row) -> str:
    return f"ε = {row['epsilon']:g}"


draw = partial(
    draw_lines,
    title="noise variance of ELS and ULS, Charles et al. 2024, Figure 2",
    panel=lambda row: "(a) ELS, B = 64" if row["panel"] == "a" else f"(b) {_epsilon(row)}",
    y="variance",
    y_label="noise variance",
    x_label=lambda name: "G_ELS" if name.startswith("(a)") else "compute budget B",
    line=lambda row: _epsilon(row) if row["panel"] == "a" else row["series"],
)
"""Panel a, then panel b for each ε."""
