r"""Charles et al. 2024, Figure 3: ELS and ULS on synthetic mean estimation, many trials at once.

Charles et al. 2024, Section 4: a population mean :math:`\mu \sim N(0, I_d)`, user means
:math:`\mu_u \sim N(\mu, \sigma_1^2 I_d)`, examples :math:`x_{u,j} \sim N(\mu_u, \sigma_2^2 I_d)`.
The loss of an example is :math:`\tfrac12 \|\theta - x\|^2`; what is reported is the excess of the
population's loss, as :math:`\|\theta_T - \mu\|^2`.

All trials, learning rates and clip norms of one algorithm run together. They share the samples and
the direction of the noise: each (rate, clip) by itself is an exact run of the algorithm, and their
comparison is less noisy.

Figure 3: d = 32, N = 256, K = 16, T = 256, δ = 1e-6, σ₁ = 1, G_ELS = K, 128 trials, and the
defaults ε = 1, B = 64, σ₂ = 1 are the paper's. The values that each panel goes through, and the
grid of learning rates and clip norms, are ours. A row holds the best (learning rate, clip norm) of
its algorithm.

Axes: R trials, U drawn units (padded), D dimensions, S settings of (learning rate, clip norm).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from papers.drawing import Figure, Row, draw_lines
from papers.plans import least_noise
from papers.variance import DELTA

Floats: TypeAlias = NDArray[np.float32]
Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """The synthetic data sets, one for each trial.

    Args:
        dimensions: d.
        users: N.
        examples: K, of each user.
        between: σ₁, between users.
        within: σ₂, within a user.
        trials: independent data sets.
    """

    dimensions: int = 32
    users: int = 256
    examples: int = 16
    between: float = 1.0
    within: float = 1.0
    trials: int = 128

    def draw(self, seed: int) -> tuple[Floats, Floats]:
        """The population means, (trials, d), and the examples, (trials, users, examples, d)."""
        draw = np.random.default_rng(seed)
        r, n, k, d = self.trials, self.users, self.examples, self.dimensions
        means_RD = draw.standard_normal((r, d), dtype=np.float32)
        spread = np.float32(self.between) * draw.standard_normal((r, n, d), dtype=np.float32)
        data = np.float32(self.within) * draw.standard_normal((r, n, k, d), dtype=np.float32)
        data += (means_RD[:, None] + spread)[:, :, None]
        return means_RD, data


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """ELS (``group_size`` None: all K examples of a user train) or ULS with G examples per user.

    Args:
        group_size: G of ULS, or None for ELS.
        budget: B, gradients expected per step; the cohort is M = B/G users.
        noise_multiplier: σ.
        steps: T.
    """

    group_size: int | None
    budget: float
    noise_multiplier: float
    steps: int

    @property
    def units(self) -> float:
        """Units expected per step: B examples, or M users."""
        return self.budget / (self.group_size or 1)


def simulate(
    algorithm: Algorithm,
    means_RD: Floats,
    data_RNKD: Floats,
    *,
    learning_rates: Floats,
    clip_norms: Floats,
    seed: int,
) -> NDArray[np.float64]:
    """‖θ_T - μ‖² of every trial and setting, from θ_0 = 0 by plain SGD.

    Args:
        algorithm: what to run.
        means_RD: μ of each trial.
        data_RNKD: each trial's examples.
        learning_rates: (settings,).
        clip_norms: (settings,).
        seed: of samples and noise; a study, so that no claim rests on it.

    Returns:
        float64, (trials, settings).

    Source: Charles et al. 2024, Algorithms 1 and 2, and Section 4.
    """
    draw = np.random.default_rng(seed)
    trials, users, examples, dimensions = data_RNKD.shape
    rates_S, clips_S = (np.asarray(x, dtype=np.float32) for x in (learning_rates, clip_norms))
    theta_RDS = np.zeros((trials, dimensions, len(rates_S)), dtype=np.float32)
    scale = np.float32(1 / algorithm.units)
    noise = np.float32(algorithm.noise_multiplier)
    flat = data_RNKD.reshape(trials, users * examples, dimensions)
    for _ in range(algorithm.steps):
        if algorithm.group_size is None:
            index, valid_RU = poisson_rows(draw, trials, flat.shape[1], algorithm.units)
            units_RUD = flat[np.arange(trials)[:, None], index]
        else:
            index, valid_RU = poisson_rows(draw, trials, users, algorithm.units)
            units_RUD = _group_means(draw, data_RNKD, index, algorithm.group_size)
        total_RDS = clipped_sums(theta_RDS, units_RUD, valid_RU, clips_S)
        direction_RD = draw.standard_normal((trials, dimensions), dtype=np.float32)
        total_RDS += (noise * direction_RD)[:, :, None] * clips_S
        theta_RDS -= (scale * rates_S) * total_RDS
    errors = theta_RDS.astype(np.float64) - means_RD.astype(np.float64)[:, :, None]
    squared: NDArray[np.float64] = (errors**2).sum(1)
    return squared


def clipped_sums(
    theta_RDS: Floats, units_RUD: Floats, valid_RU: NDArray[np.bool_], clips_S: Floats
) -> Floats:
    r"""The sum over units of :math:`\mathrm{clip}(\theta - y_u, C)`, for every trial and setting.

    The gradients θ - y are never formed: their norms come from :math:`\|y\|^2 - 2 y \cdot \theta +
    \|\theta\|^2` and their weighted sum from two matrix products.

    Args:
        theta_RDS: parameters.
        units_RUD: y, the mean of each drawn unit's examples.
        valid_RU: which of the padded units were drawn.
        clips_S: C.
    """
    squares = (units_RUD**2).sum(2)[:, :, None] + (theta_RDS**2).sum(1)[:, None, :]
    squares -= 2 * np.matmul(units_RUD, theta_RDS)
    np.maximum(squares, np.float32(1e-12), out=squares)
    weights_RUS = np.minimum(np.float32(1), clips_S / np.sqrt(squares, out=squares))
    weights_RUS *= valid_RU[:, :, None]
    total: Floats = theta_RDS * weights_RUS.sum(1)[:, None, :]
    total -= np.matmul(units_RUD.transpose(0, 2, 1), weights_RUS)
    return total


def poisson_rows(
    draw: np.random.Generator, trials: int, total: int, expected: float
) -> tuple[Integers, NDArray[np.bool_]]:
    """For each trial a Poisson sample of ``range(total)``, each with ``expected / total``.

    The gaps between members of a Bernoulli process are geometric, so the cost follows the sample.

    Returns:
        Indices (trials, longest sample), and which of them are real.
    """
    probability = expected / total
    if probability >= 1:
        everything = np.broadcast_to(np.arange(total), (trials, total))
        return everything, np.ones((trials, total), dtype=np.bool_)
    width = int(expected + 8 * math.sqrt(expected) + 8)
    places = np.cumsum(draw.geometric(probability, (trials, width)), axis=1) - 1
    while places[:, -1].min() < total - 1:  # a sample longer than foreseen: draw on
        more = np.cumsum(draw.geometric(probability, (trials, width)), axis=1)
        places = np.concatenate([places, places[:, -1:] + more], axis=1)
    valid = places < total
    longest = max(1, int(valid.sum(1).max()))
    return np.where(valid, places, 0)[:, :longest], valid[:, :longest]


def _group_means(
    draw: np.random.Generator, data_RNKD: Floats, users_RU: Integers, group_size: int
) -> Floats:
    """The mean of ``group_size`` random examples of each drawn user, without replacement."""
    trials, _, examples, _ = data_RNKD.shape
    rows = np.arange(trials)[:, None, None]
    if group_size >= examples:
        whole: Floats = data_RNKD[rows[:, :, 0], users_RU].mean(2)
        return whole
    if group_size == 1:
        picked: Any = draw.integers(examples, size=(*users_RU.shape, 1))
    else:
        order = draw.random((*users_RU.shape, examples), dtype=np.float32)
        picked = np.argpartition(order, group_size, axis=2)[:, :, :group_size]
    means: Floats = data_RNKD[rows, users_RU[:, :, None], picked].mean(2)
    return means


DEFAULTS: dict[str, float] = {"epsilon": 1.0, "budget": 64, "within": 1.0}
PANELS: dict[str, tuple[float, ...]] = {
    "epsilon": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    "budget": (16, 32, 64, 128, 256),
    "within": (0.25, 0.5, 1.0, 2.0, 4.0),
}
LEARNING_RATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
CLIP_NORMS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_LABELS = {"epsilon": "ε", "budget": "compute budget B", "within": "within-user deviation σ₂"}


def figure_3(
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


FIGURES = {
    "charles-figure-3": Figure(
        rows=figure_3,
        draw=partial(
            draw_lines,
            title="mean estimation by ELS and ULS, Charles et al. 2024, Figure 3",
            panel=lambda row: row["panel"],
            y="loss",
            y_label="‖θ - μ‖²",
            x_label=_LABELS,
            standard_error="standard_error",
        ),
    )
}
