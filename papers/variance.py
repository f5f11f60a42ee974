"""Charles et al. 2024, Figures 2 and 9: var(ζ) of ELS and ULS under one compute budget.

K = 32, T = 1000, N = 1024 users are the paper's, with δ = 1e-6 and L_ELS = 10 from Appendix B; the
values of ε and the grids are ours.

Figure 2: (a) ELS with B = 64, over G_ELS. (b) over B: ELS with G_ELS = K and p = B/(K N); ULS with
M = 16 and G_ULS = B/M, twice: L_ULS = L_ELS, and L_ULS = L_ELS/√G_ULS. Figure 9: the same over B, M
and ε. A budget below the cohort size, or above K·M, has no ULS counterpart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from papers.drawing import Figure, Row, draw_lines
from papers.plans import least_noise

EXAMPLES, USERS, STEPS, DELTA = 32, 1024, 1000, 1e-6
"""K, which is also G_ELS; N; T; δ."""
_CLIP = 10.0  # L_ELS
SERIES = ("ELS", "ULS, L_ULS = L_ELS", "ULS, L_ULS = L_ELS/√G_ULS")
_BUDGET, _COHORT = 64, 16


def series(name: str, epsilon: float, size: int, *, group: int = 1, diverse: float = 1.0) -> Row:
    """One series at one ε: its noise multiplier and var(ζ) = (σ L / size)², Equations 5 and 6.

    Args:
        name: of the series.
        epsilon: at `DELTA`.
        size: examples (ELS) or users (ULS) expected in a step.
        group: G of ELS; 1 of ULS.
        diverse: L_ELS / L; √G_ULS where a user's gradients are taken as orthogonal (Appendix B).
    """
    sigma = least_noise(size / (group * USERS), STEPS, epsilon, DELTA, group)
    variance = (sigma * _CLIP / diverse / size) ** 2
    return {"series": name, "noise_multiplier": sigma, "variance": variance}


def compare(epsilon: float, budget: int, cohort: int) -> list[Row]:
    """Noise and variance of each series of `SERIES`, for B = ``budget`` and M = ``cohort``."""
    return [
        series(SERIES[0], epsilon, budget, group=EXAMPLES),
        series(SERIES[1], epsilon, cohort),
        series(SERIES[2], epsilon, cohort, diverse=math.sqrt(budget / cohort)),
    ]


def figure_2(
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


def figure_9(
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


def _epsilon(row: Row) -> str:
    return f"ε = {row['epsilon']:g}"


FIGURES = {
    "charles-figure-2": Figure(
        rows=figure_2,
        draw=partial(
            draw_lines,
            title="noise variance of ELS and ULS, Charles et al. 2024, Figure 2",
            panel=lambda row: "(a) ELS, B = 64" if row["panel"] == "a" else f"(b) {_epsilon(row)}",
            y="variance",
            y_label="noise variance",
            x_label="G_ELS (a), compute budget B (b)",
            line=lambda row: _epsilon(row) if row["panel"] == "a" else row["series"],
        ),
    ),
    "charles-figure-9": Figure(
        rows=figure_9,
        draw=partial(
            draw_lines,
            title="noise variance of ELS and ULS, Charles et al. 2024, Figure 9",
            panel=lambda row: f"{_epsilon(row)}, M = {row['cohort_size']}",
            x="budget",
            y="variance",
            y_label="noise variance",
            x_label="compute budget B",
            columns=3,
        ),
    ),
}
