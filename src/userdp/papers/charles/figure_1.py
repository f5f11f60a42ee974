"""Charles et al. 2024, Figure 1: ε of DP-SGD-ELS against black-box group privacy.

T = 2000, p = 1e-2, δ = 1e-6 are the paper's; of the noise multipliers its text names 0.5 and 1, the
others and the group sizes are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from userdp.papers.ganesh import figure_1 as ganesh_figure_1
from userdp.papers.groups import draw_groups
from userdp.papers.table import Row


def rows(
    *,
    noise_multipliers: Sequence[float] = (0.5, 1.0, 2.0, 4.0),
    group_sizes: Sequence[int] = (1, 2, 4, 6, 8, 12, 16, 24, 32),
    steps: int = 2000,
    sampling_probability: float = 0.01,
    delta: float = 1e-6,
) -> list[Row]:
    """A row for each noise multiplier and group size; columns as in `rows_by_noise`."""
    return ganesh_figure_1.rows(
        noise_multipliers=noise_multipliers,
        group_sizes=group_sizes,
        steps=steps,
        sampling_probability=sampling_probability,
        delta=delta,
    )


def draw(rows: Sequence[Row], path: Path) -> None:
    """The figure as a PNG."""
    draw_groups(rows, path, title="ELS, Charles et al. 2024, Figure 1", noise_label="σ_ELS")
