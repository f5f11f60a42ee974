"""The papers' figures: their findings hold in the rows, and the PNG and CSV are written."""

from __future__ import annotations

import csv
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from papers.drawing import write_csv
from papers.figures import FIGURES
from tests.speed import fast_then_slow
from userdp.accounting import binomial_steps


def figure(name: str):
    return import_module(f"papers.{FIGURES[name]['module']}").FIGURES[name]


SMALL: dict[str, dict[str, object]] = {
    "charles-figure-9": {"epsilons": (4.0,), "cohort_sizes": (16,), "budgets": (8, 16, 64)},
    "charles-figure-2": {"epsilons": (4.0,), "group_sizes": (1, 32), "budgets": (16, 64)},
    "ganesh-figure-1": {"noise_multipliers": (4.0,), "group_sizes": (1, 2)},
    "ganesh-figure-2": {"noise_multipliers": (8.0,), "group_sizes": (1, 2)},
    "charles-figure-1": {"noise_multipliers": (4.0,), "group_sizes": (1, 2)},
    "charles-figure-3": {
        "panels": {"epsilon": (1.0,), "budget": (16, 64)},
        "learning_rates": (0.1, 0.2),
        "clip_norms": (1.0, 2.0),
        "trials": 2,
        "steps": 4,
    },
    "charles-conjecture-1": {"settings": 5},
    "chua-figure-7": {"epsilons": (0.5, 8.0), "group_sizes": (2, 5), "ratios": (0.5, 1.0)},
}


@pytest.mark.parametrize("name", fast_then_slow(list(SMALL)))
def test_each_figure_writes_its_csv_and_png(name: str, tmp_path: Path) -> None:
    rows = figure(name).rows(**SMALL[name])
    figure(name).draw(rows, tmp_path / "figure.png")
    write_csv(rows, tmp_path / "figure.csv")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "figure.csv").open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert len(read) == len(rows)
    assert list(read[0]) == list(rows[0])


def test_conjecture_1_fails_for_one_step_at_an_epsilon_far_below_p() -> None:
    """δ(0) by plain quadrature, and the certified brackets agree: no artefact of the accountant."""
    p, k, sigma = 0.5, 2, 0.5
    x = np.linspace(-40, 45, 2_000_001)

    def total_variation(noise: float, weights: dict[int, float]) -> float:
        mixture = sum(w * stats.norm.pdf(x, shift, noise) for shift, w in weights.items())
        return float(np.trapezoid(np.abs(mixture - stats.norm.pdf(x, 0, noise)), x)) / 2

    users = total_variation(sigma, {0: 1 - p, 1: p})
    examples = total_variation(k * sigma, {0: (1 - p) ** 2, 1: 2 * p * (1 - p), 2: p**2})
    assert examples > 1.03 * users
    uls = binomial_steps(sampling_probability=p, noise_multiplier=sigma, steps=1)
    els = binomial_steps(sampling_probability=p, group_size=k, noise_multiplier=k * sigma, steps=1)
    assert uls.delta(0.0).upper == pytest.approx(users, rel=1e-6)
    assert els.delta(0.0).lower == pytest.approx(examples, rel=1e-6)
    assert els.delta(0.04).lower > uls.delta(0.04).upper
    assert els.delta(0.5).upper < uls.delta(0.5).lower
