"""Ganesh 2024, Figure 1: ε of a group of k under Poisson sampling.

T = 2000, q = 1/100, δ = 1e-6 are the paper's. The text names σ = 1; the other noise multipliers
and the largest k are ours.
"""

from __future__ import annotations

from functools import partial

from papers.groups import draw_groups, rows_by_noise
from userdp.accounting.mechanisms import binomial_steps

rows = partial(
    rows_by_noise,
    partial(binomial_steps, sampling_probability=0.01, steps=2000),
    noise_multipliers=(1.0, 2.0, 4.0),
    group_sizes=range(1, 17),
)
"""A row for each noise multiplier and group size; columns as in `rows_by_noise`."""

draw = partial(draw_groups, title="Poisson sampling, Ganesh 2024, Figure 1")
"""ε over the group size, a panel for each noise multiplier."""
