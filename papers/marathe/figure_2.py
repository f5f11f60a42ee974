"""Marathe et al. 2023, Figure 2: the largest group of a subject in a mini-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from papers.marathe.federations import ALPHAS, SEEDS, Size
from papers.table import Row
from userdp.federated.data import places
from userdp.reporting.drawing import panels, save
from userdp.sampling.coins import distinct_indices

SILOS = Size().silos
FEMNIST_SUBJECTS, FEMNIST_ITEMS, FEMNIST_SPREAD, FEMNIST_BATCH = 3500, 145, 0.38, 512
MINI_BATCHES = 50
"""Of each silo."""


def rows() -> list[Row]:
    """How many mini-batches have which largest group, at FEMNIST's sizes; nothing is trained.

    Each seed is a population of its own. Subjects' numbers of items are log-normal, with FEMNIST's
    relative spread (226.83 items with a standard deviation of 88.94: Caldas et al. 2018, LEAF,
    Table 1).
    """
    return [
        {"alpha": alpha or 1.0, "seed": seed, "largest_group": size, "mini_batches": number}
        for alpha in ALPHAS
        for seed in SEEDS
        for size, number in sorted(_largest_groups(seed, alpha).items())
    ]


def _largest_groups(seed: int, alpha: float | None) -> Counter[int]:
    """Of one population and spread: the number of mini-batches by their largest group."""
    draw = np.random.default_rng([seed, 2])
    location = np.log(FEMNIST_ITEMS) - FEMNIST_SPREAD**2 / 2
    sizes = np.maximum(1, draw.lognormal(location, FEMNIST_SPREAD, FEMNIST_SUBJECTS))
    counts = sizes.round().astype(np.int64)
    owners = np.repeat(np.arange(FEMNIST_SUBJECTS), counts)
    silos = np.concatenate(
        [
            places(
                str(subject).encode(), int(count), silos=SILOS, most=SILOS, seed=seed, alpha=alpha
            )
            for subject, count in enumerate(counts)
        ]
    )
    largest: Counter[int] = Counter()
    for silo in range(SILOS):
        own = owners[silos == silo]
        for _ in range(MINI_BATCHES if len(own) else 0):
            batch = distinct_indices(draw, len(own), min(len(own), FEMNIST_BATCH))
            largest[int(np.bincount(own[batch]).max())] += 1
    return largest


def draw(rows: Sequence[Row], path: Path) -> None:
    """The largest group of a mini-batch, a panel for each spread over silos."""
    alphas = list(dict.fromkeys(row["alpha"] for row in rows))
    figure, axes = panels(len(alphas), width=2.6, height=3.0)
    for axis, alpha in zip(axes, alphas, strict=True):
        part = [row for row in rows if row["alpha"] == alpha]
        total: Counter[int] = Counter()
        for row in part:
            total[row["largest_group"]] += row["mini_batches"]
        axis.bar(list(total), list(total.values()))
        axis.set_title("uniform" if alpha == 1.0 else f"α = {alpha:g}", fontsize=9)
        axis.set_xlabel("largest group")
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set_ylabel("mini-batches")
    figure.suptitle("subjects in mini-batches of 512 (Marathe et al. 2023, Figure 2)", fontsize=10)
    save(figure, path)
