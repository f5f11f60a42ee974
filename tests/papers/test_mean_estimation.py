"""The vectorised simulation against plain loops, closed forms and the paper's findings."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from papers.mean_estimation import (
    Algorithm,
    Population,
    clipped_sums,
    figure_3,
    simulate,
)

SMALL = Population(dimensions=3, users=7, examples=4, trials=5)


def plain_clipped_sum(theta, units, clip):
    """One trial, one setting, unit by unit."""
    total = np.zeros_like(theta)
    for unit in units:
        gradient = theta - unit
        total += gradient * min(1.0, clip / np.linalg.norm(gradient))
    return total


def test_clipped_sums_are_those_of_a_plain_loop():
    draw = np.random.default_rng(1)
    theta = draw.normal(size=(2, 3, 4)).astype(np.float32)
    units = draw.normal(size=(2, 5, 3)).astype(np.float32)
    valid = draw.random((2, 5)) < 0.6
    clips = np.array([0.1, 0.5, 2.0, 50.0], dtype=np.float32)
    found = clipped_sums(theta, units, valid, clips)
    for trial in range(2):
        for setting, clip in enumerate(clips):
            expected = plain_clipped_sum(theta[trial, :, setting], units[trial][valid[trial]], clip)
            assert found[trial, :, setting] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("group_size", "units"), [(None, 28), (4, 7)])
def test_one_step_of_noise_has_the_mechanisms_variance(group_size, units):
    """With gradients of almost nothing, ‖θ‖² is (σ C rate / units)² times a χ² of d degrees."""
    population = Population(
        dimensions=4, users=7, examples=4, trials=4000, between=1e-6, within=1e-6
    )
    algorithm = Algorithm(group_size=group_size, budget=28, noise_multiplier=50.0, steps=1)
    means, data = population.draw(0)
    found = simulate(
        algorithm,
        np.zeros_like(means),
        data - means[:, None, None],
        learning_rates=np.array([2.0]),
        clip_norms=np.array([3.0]),
        seed=5,
    )[:, 0]
    scaled = found / (50.0 * 3.0 * 2.0 / units) ** 2
    assert stats.kstest(scaled, stats.chi2(4).cdf).pvalue > 1e-3
    assert stats.kstest(scaled / 1.1, stats.chi2(4).cdf).pvalue < 1e-3  # 5% less noise is seen


def test_the_findings_of_figure_3_hold_in_small():
    """ULS with G = 1 no worse than ELS; with much within-user noise larger groups win."""
    found = figure_3(
        panels={"within": (0.25, 4.0)},
        group_sizes=(1, 16),
        learning_rates=(0.02, 0.1, 0.5),
        clip_norms=(0.5, 2.0, 8.0),
        trials=16,
        steps=64,
    )
    loss = {(row["series"], row["x"]): row["loss"] for row in found}
    for x in (0.25, 4.0):
        assert loss["ULS, G = 1", x] <= 1.1 * loss["ELS", x]
    assert loss["ULS, G = 16", 4.0] < 0.8 * loss["ULS, G = 1", 4.0]
    assert loss["ULS, G = 16", 0.25] > loss["ULS, G = 1", 0.25]
