"""Charles et al. 2024, Figure 2: noise variance of ELS and ULS under a compute budget.

K = 32, T = 1000, N = 1024 users are the paper's, with δ = 1e-6 and L_ELS = 10 from Appendix B.
(a) ELS with B = 64, over G_ELS. (b) over B: ELS with G_ELS = K and p = B/(K N); ULS with M = 16 and
G_ULS = B/M, twice: L_ULS = L_ELS, and L_ULS = L_ELS/√G_ULS. The values of ε are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from userdp.papers.charles.variances import Setting, least_noise, noise_variance
from userdp.papers.drawing import draw_lines
from userdp.papers.table import Row


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
    setting = Setting(
        examples_per_user=examples_per_user, users=users, steps=steps, clip=clip, delta=delta
    )
    rows: list[Row] = []
    for epsilon in epsilons:
        for group_size in group_sizes:
            p = fixed_budget / (group_size * users)
            sigma = least_noise(p, steps, epsilon, delta, group_size)
            variance = noise_variance(sigma, clip, fixed_budget)
            part = {"series": "ELS", "noise_multiplier": sigma, "variance": variance}
            rows.append({"panel": "a", "epsilon": epsilon, "x": group_size, **part})
        for budget in budgets:
            rows += [
                {"panel": "b", "epsilon": epsilon, "x": budget, **part}
                for part in setting.compare(epsilon, budget, cohort_size)
            ]
    return rows


def draw(rows: Sequence[Row], path: Path) -> None:
    """The figure as a PNG: panel a, then panel b for each ε."""
    parts: dict[str, list[Row]] = {"(a) ELS, B = 64": [r for r in rows if r["panel"] == "a"]}
    for row in rows:
        if row["panel"] == "b":
            parts.setdefault(f"(b) ε = {row['epsilon']:g}", []).append(row)
    draw_lines(
        parts,
        path,
        title="noise variance of ELS and ULS, Charles et al. 2024, Figure 2",
        y="variance",
        y_label="noise variance",
        x_label=lambda name: "G_ELS" if name.startswith("(a)") else "compute budget B",
        line=lambda r: f"ε = {r['epsilon']:g}" if r["panel"] == "a" else str(r["series"]),
    )
