"""Charles et al. 2024, Figure 9: noise variance over compute budget, cohort size and ε.

N = 1024, K = G_ELS = 32, T = 1000, δ = 1e-6, L_ELS = 10 are the paper's (Appendix B); the grids of
B, M and ε are ours. A budget below the cohort size, or above K·M, has no ULS counterpart.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from userdp.papers.charles.figure_2 import SERIES
from userdp.papers.charles.variances import (
    diverse_clip,
    examples_noise,
    examples_variance,
    users_noise,
    users_variance,
)
from userdp.papers.table import Row
from userdp.reporting.drawing import panels, save


def rows(
    *,
    epsilons: Sequence[float] = (1.0, 4.0, 16.0),
    cohort_sizes: Sequence[int] = (8, 16, 32),
    budgets: Sequence[int] = (8, 16, 32, 64, 128, 256, 512, 1024),
    examples_per_user: int = 32,
    users: int = 1024,
    steps: int = 1000,
    clip: float = 10.0,
    delta: float = 1e-6,
) -> list[Row]:
    """A row for each ε, M, B and series."""
    found: list[Row] = []
    for epsilon in epsilons:
        for cohort in cohort_sizes:
            for budget in budgets:
                if not cohort <= budget <= examples_per_user * cohort:
                    continue
                p = budget / (examples_per_user * users)
                sigma_e = examples_noise(examples_per_user, p, steps, epsilon, delta)
                sigma_u = users_noise(cohort / users, steps, epsilon, delta)
                diverse = diverse_clip(clip, budget / cohort)
                values = (
                    (SERIES[0], sigma_e, examples_variance(sigma_e, clip, budget)),
                    (SERIES[1], sigma_u, users_variance(sigma_u, clip, cohort)),
                    (SERIES[2], sigma_u, users_variance(sigma_u, diverse, cohort)),
                )
                found += [
                    {
                        "epsilon": epsilon,
                        "cohort_size": cohort,
                        "budget": budget,
                        "series": series,
                        "noise_multiplier": sigma,
                        "variance": variance,
                    }
                    for series, sigma, variance in values
                ]
    return found


def draw(rows: Sequence[Row], path: Path) -> None:
    """The figure as a PNG: a row of panels for each ε, a column for each cohort size."""
    epsilons = sorted({row["epsilon"] for row in rows})
    cohorts = sorted({row["cohort_size"] for row in rows})
    figure, axes = panels(len(epsilons) * len(cohorts), rows=len(epsilons), height=3.0)
    places = [(epsilon, cohort) for epsilon in epsilons for cohort in cohorts]
    for axis, (epsilon, cohort) in zip(axes, places, strict=True):
        for series in SERIES:
            part = [
                r
                for r in rows
                if (r["epsilon"], r["cohort_size"], r["series"]) == (epsilon, cohort, series)
            ]
            xs, ys = [r["budget"] for r in part], [r["variance"] for r in part]
            axis.plot(xs, ys, "o-", label=series, markersize=4)
        axis.set_title(f"ε = {epsilon:g}, M = {cohort}", fontsize=9)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("compute budget B")
        axis.set_ylabel("noise variance")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=7)
    figure.suptitle("noise variance of ELS and ULS, Charles et al. 2024, Figure 9", fontsize=10)
    save(figure, path)
