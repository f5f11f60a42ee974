"""Ganesh 2024, Figure 2: ε of a group of k under fixed-size batches, the noise doubled.

T = 2000, B = 500, n = 50 000, δ = 1e-6 are the paper's; the noise multipliers are twice those of
our Figure 1. n is a lower bound on the smaller data set (Theorem 3.3).
"""

from __future__ import annotations

from functools import partial

from papers.groups import draw_groups, rows_by_noise
from userdp.accounting.mechanisms import hypergeometric_steps

rows = partial(
    rows_by_noise,
    partial(hypergeometric_steps, batch_size=500, population=50_000, steps=2000),
    noise_multipliers=(2.0, 4.0, 8.0),
    group_sizes=range(1, 17),
)
"""A row for each noise multiplier and group size; columns as in `rows_by_noise`."""

draw = partial(draw_groups, title="fixed-size batches, Ganesh 2024, Figure 2")
"""ε over the group size, a panel for each noise multiplier."""
