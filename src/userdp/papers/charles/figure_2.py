"""Charles et al. 2024, Figure 2: noise variance of ELS and ULS under a compute budget.

K = 32, T = 1000, N = 1024 users are the paper's, with δ = 1e-6 and L_ELS = 10 from Appendix B.
(a) ELS with B = 64, over G_ELS. (b) over B: ELS with G_ELS = K and p = B/(K N); ULS with M = 16 and
G_ULS = B/M, twice: L_ULS = L_ELS, and L_ULS = L_ELS/√G_ULS. The values of ε are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from userdp.papers.charles.variances import (
    diverse_clip,
    examples_noise,
    examples_variance,
    users_noise,
    users_variance,
)
from userdp.papers.table import Row
from userdp.reporting.drawing import panels, save

SERIES = ("ELS", "ULS, L_ULS = L_ELS", "ULS, L_ULS = L_ELS/√G_ULS")


def rows(
    *,
    epsilons: Sequence[float] = (1.0, 4.0, 16.0),
    group_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32),
    budgets: Sequence[int] = (16, 32, 64, 128, 256, 512),
    examples_per_user: int = 32,
    users: int = 1024,
    steps: int = 1000,
    fixed_budget: int = 64,
    cohort_size: int = 16,
    clip: float = 10.0,
    delta: float = 1e-6,
) -> list[Row]:
    """A row for each panel, ε, series and abscissa (G_ELS in panel a, B in panel b)."""
    found: list[Row] = []

    def add(panel: str, epsilon: float, series: str, x: int, sigma: float, var: float) -> None:
        keys = ("panel", "epsilon", "series", "x", "noise_multiplier", "variance")
        found.append(dict(zip(keys, (panel, epsilon, series, x, sigma, var), strict=True)))

    for epsilon in epsilons:
        for group_size in group_sizes:
            p = fixed_budget / (group_size * users)
            sigma = examples_noise(group_size, p, steps, epsilon, delta)
            add(
                "a", epsilon, "ELS", group_size, sigma, examples_variance(sigma, clip, fixed_budget)
            )
        for budget in budgets:
            p = budget / (examples_per_user * users)
            sigma = examples_noise(examples_per_user, p, steps, epsilon, delta)
            add("b", epsilon, SERIES[0], budget, sigma, examples_variance(sigma, clip, budget))
            group_size = budget // cohort_size
            sigma = users_noise(cohort_size / users, steps, epsilon, delta)
            for series, bound in ((SERIES[1], clip), (SERIES[2], diverse_clip(clip, group_size))):
                variance = users_variance(sigma, bound, cohort_size)
                add("b", epsilon, series, budget, sigma, variance)
    return found


def draw(rows: Sequence[Row], path: Path) -> None:
    """The figure as a PNG: panel a, then panel b for each ε."""
    epsilons = sorted({row["epsilon"] for row in rows})
    figure, axes = panels(1 + len(epsilons))
    for epsilon in epsilons:
        part = [r for r in rows if r["panel"] == "a" and r["epsilon"] == epsilon]
        xs, ys = [r["x"] for r in part], [r["variance"] for r in part]
        axes[0].plot(xs, ys, "o-", label=f"ε = {epsilon:g}", markersize=4)
    axes[0].set_title("(a) ELS, B = 64")
    axes[0].set_xlabel("G_ELS")
    for axis, epsilon in zip(axes[1:], epsilons, strict=True):
        for series in SERIES:
            part = [
                r for r in rows if (r["panel"], r["epsilon"], r["series"]) == ("b", epsilon, series)
            ]
            xs, ys = [r["x"] for r in part], [r["variance"] for r in part]
            axis.plot(xs, ys, "o-", label=series, markersize=4)
        axis.set_title(f"(b) ε = {epsilon:g}")
        axis.set_xlabel("compute budget B")
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_ylabel("noise variance")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle("noise variance of ELS and ULS, Charles et al. 2024, Figure 2", fontsize=10)
    save(figure, path)
