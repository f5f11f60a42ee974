"""Ganesh 2024, Figure 2: ε of a group of k under fixed-size batches, the noise doubled.

T = 2000, B = 500, n = 50 000, δ = 1e-6 are the paper's; the noise multipliers are twice those of
our Figure 1. n is a lower bound on the smaller data set (Theorem 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from userdp.accounting.mechanisms import Mixture, hypergeometric_steps
from userdp.papers.groups import draw_groups, rows_by_noise
from userdp.papers.table import Row


def rows(
    *,
    noise_multipliers: Sequence[float] = (2.0, 4.0, 8.0),
    group_sizes: Sequence[int] = tuple(range(1, 17)),
    steps: int = 2000,
    batch_size: int = 500,
    population: int = 50_000,
    delta: float = 1e-6,
) -> list[Row]:
    """A row for each noise multiplier and group size; columns as in `rows_by_noise`."""

    def mechanism(noise: float, k: int) -> Mixture:
        return hypergeometric_steps(
            batch_size=batch_size,
            population=population,
            group_size=k,
            noise_multiplier=noise,
            steps=steps,
        )

    return rows_by_noise(
        mechanism, noise_multipliers=noise_multipliers, group_sizes=group_sizes, delta=delta
    )


def draw(rows: Sequence[Row], path: Path) -> None:
    """The figure as a PNG."""
    draw_groups(rows, path, title="fixed-size batches, Ganesh 2024, Figure 2", noise_label="σ")
