"""Charles et al. 2024, Figure 3: ELS and ULS on synthetic mean estimation.

d = 32, N = 256, K = 16, T = 256, δ = 1e-6, σ₁ = 1, G_ELS = K, 128 trials, and the defaults ε = 1,
B = 64, σ₂ = 1 are the paper's. The values that each panel goes through, and the grid of learning
rates and clip norms, are ours. A row holds the best (learning rate, clip norm) of its algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from papers.charles.mean_estimation import Algorithm, Population, simulate
from papers.charles.variances import DELTA, least_noise
from papers.drawing import draw_lines
from papers.table import Row

DEFAULTS: dict[str, float] = {"epsilon": 1.0, "budget": 64, "within": 1.0}
PANELS: dict[str, tuple[float, ...]] = {
    "epsilon": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    "budget": (16, 32, 64, 128, 256),
    "within": (0.25, 0.5, 1.0, 2.0, 4.0),
}
LEARNING_RATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
CLIP_NORMS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_LABELS = {"epsilon": "ε", "budget": "compute budget B", "within": "within-user deviation σ₂"}


def rows(
    *,
    panels: Mapping[str, Sequence[float]] = PANELS,
    group_sizes: Sequence[int] = (1, 4, 16),
    learning_rates: Sequence[float] = LEARNING_RATES,
    clip_norms: Sequence[float] = CLIP_NORMS,
    trials: int = 128,
    steps: int = 256,
) -> list[Row]:
    """A row for each panel, abscissa and algorithm: the least mean loss, and where it was."""
    rates, clips = (x.ravel() for x in np.meshgrid(learning_rates, clip_norms, indexing="ij"))
    rows: list[Row] = []
    for panel, x in ((panel, x) for panel, values in panels.items() for x in values):
        epsilon, budget, within = (DEFAULTS | {panel: x}).values()
        population = Population(within=within, trials=trials)
        means, data = population.draw(0)
        for group_size in (None, *group_sizes):
            units = budget / (group_size or 1)
            if group_size is not None and not 1 <= units <= population.users:
                continue
            of_a_user = population.examples if group_size is None else 1  # units to be drawn
            chance = units / (population.users * of_a_user)
            sigma = least_noise(chance, steps, epsilon, DELTA, of_a_user)
            losses = simulate(
                Algorithm(
                    group_size=group_size, budget=budget, noise_multiplier=sigma, steps=steps
                ),
                means,
                data,
                learning_rates=rates,
                clip_norms=clips,
                seed=1,
            )
            series = "ELS" if group_size is None else f"ULS, G = {group_size}"
            best = _best(losses, rates, clips) | {"noise_multiplier": sigma}
            rows.append({"panel": panel, "x": x, "series": series, **best})
    return rows


def _best(losses: Any, rates: Any, clips: Any) -> Row:
    """The setting of the least mean over trials, its standard error, and whether it is an edge."""
    means = losses.mean(0)
    best = int(np.nanargmin(means))
    rate, clip = float(rates[best]), float(clips[best])
    return {
        "loss": float(means[best]),
        "standard_error": float(losses[:, best].std(ddof=1) / math.sqrt(len(losses))),
        "learning_rate": rate,
        "l2_clip_norm": clip,
        "on_edge": rate in (rates.min(), rates.max()) or clip in (clips.min(), clips.max()),
    }


draw = partial(
    draw_lines,
    title="mean estimation by ELS and ULS, Charles et al. 2024, Figure 3",
    panel=lambda row: row["panel"],
    y="loss",
    y_label="‖θ - μ‖²",
    x_label=_LABELS.__getitem__,
    standard_error="standard_error",
)
"""A panel each for ε, B and σ₂."""
