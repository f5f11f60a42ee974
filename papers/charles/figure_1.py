"""Charles et al. 2024, Figure 1: ε of DP-SGD-ELS against black-box group privacy.

T = 2000, p = 1e-2, δ = 1e-6 are the paper's; of the noise multipliers its text names 0.5 and 1, the
others and the group sizes are ours.
"""

from __future__ import annotations

from functools import partial

from papers.ganesh import figure_1
from papers.groups import draw_groups

rows = partial(
    figure_1.rows,  # T and p are the same there
    noise_multipliers=(0.5, 1.0, 2.0, 4.0),
    group_sizes=(1, 2, 4, 6, 8, 12, 16, 24, 32),
)
"""A row for each noise multiplier and group size; columns as in `rows_by_noise`."""

draw = partial(draw_groups, title="ELS, Charles et al. 2024, Figure 1", noise_label="σ_ELS")
"""ε over the group size, a panel for each noise multiplier."""
