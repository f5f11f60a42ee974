"""Charles et al. 2024, Figure 9: noise variance over compute budget, cohort size and ε.

N = 1024, K = G_ELS = 32, T = 1000, δ = 1e-6, L_ELS = 10 are the paper's (Appendix B); the grids of
B, M and ε are ours. A budget below the cohort size, or above K·M, has no ULS counterpart.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from papers.charles.variances import EXAMPLES, compare
from papers.drawing import draw_lines
from papers.table import Row


def rows(
    *,
    epsilons: Sequence[float] = (1.0, 4.0, 16.0),
    cohort_sizes: Sequence[int] = (8, 16, 32),
    budgets: Sequence[int] = (8, 16, 32, 64, 128, 256, 512, 1024),
) -> list[Row]:
    """A row for each ε, M, B and series."""
    return [
        {"epsilon": epsilon, "cohort_size": cohort, "budget": budget, **part}
        for epsilon in epsilons
        for cohort in cohort_sizes
        for budget in budgets
        if cohort <= budget <= EXAMPLES * cohort
        for part in compare(epsilon, budget, cohort)
    ]


draw = partial(
    draw_lines,
    title="noise variance of ELS and ULS, Charles et al. 2024, Figure 9",
    panel=lambda row: f"ε = {row['epsilon']:g}, M = {row['cohort_size']}",
    x="budget",
    y="variance",
    y_label="noise variance",
    x_label=lambda name: "compute budget B",
    columns=3,
)
"""A row of panels for each ε, a column for each cohort size."""
