"""Ganesh 2024, Figure 1: ε of a group of k under Poisson sampling.

T = 2000, q = 1/100, δ = 1e-6 are the paper's. The text names σ = 1; the other noise multipliers
and the largest k are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from userdp.accounting.mechanisms import Mixture, binomial_steps
from userdp.papers.groups import draw_groups, rows_by_noise
from userdp.papers.table import Row


def rows(
    *,
    noise_multipliers: Sequence[float] = (1.0, 2.0, 4.0),
    group_sizes: Sequence[int] = tuple(range(1, 17)),
    steps: int = 2000,
    sampling_probability: float = 0.01,
    delta: float = 1e-6,
) -> list[Row]:
    """A row for each noise multiplier and group size; columns as in `rows_by_noise`."""

    def mechanism(noise: float, k: int) -> Mixture:
        return binomial_steps(
            sampling_probability=sampling_probability,
            group_size=k,
            noise_multiplier=noise,
            steps=steps,
        )

    return rows_by_noise(
        mechanism, noise_multipliers=noise_multipliers, group_sizes=group_sizes, delta=delta
    )


def draw(rows: Sequence[Row], path: Path) -> None:
    """The figure as a PNG."""
    draw_groups(rows, path, title="Poisson sampling, Ganesh 2024, Figure 1", noise_label="σ")
