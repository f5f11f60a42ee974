"""The count of unclipped units: one unit moves it by a half, k units of a user by k / 2."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from userdp.gradients import NoiseSource
from userdp.gradients.noise import COUNT_SENSITIVITY, centred_count, noisy_count

NORMS = [0.2, 0.9999, 1.0, 1.0001, 50.0, math.nan, math.inf, 0.0]


@pytest.mark.parametrize("held", [1, 3, 5])
@pytest.mark.parametrize("norm", NORMS)
def test_invariant_3_k_drawn_units_of_a_user_move_the_count_by_half_of_k(norm, held):
    others = torch.tensor(NORMS, dtype=torch.float64)
    mine = torch.full((held,), norm, dtype=torch.float64)
    counts = [
        centred_count(norms, l2_clip_norm=1.0) for norms in (others, torch.cat([others, mine]))
    ]
    assert abs(counts[1] - counts[0]) == held * COUNT_SENSITIVITY


def test_the_count_of_nobody_is_zero() -> None:
    assert centred_count(torch.zeros(0), l2_clip_norm=1.0) == 0


def releases(exact: bool) -> np.ndarray:
    noise, norms = NoiseSource(), torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)
    found = [
        centred_count(norms, l2_clip_norm=1.0)
        if exact
        else noisy_count(norms, l2_clip_norm=1.0, count_noise_std=4.0, noise=noise)
        for _ in range(1000)
    ]
    return (np.array(found) + 0.5) / 4.0


def test_invariant_5_the_count_carries_fresh_gaussian_noise_of_its_own() -> None:
    assert stats.kstest(releases(exact=False), "norm").pvalue > 1e-9


def test_invariant_5_twin_a_count_without_noise_is_caught() -> None:
    assert stats.kstest(releases(exact=True), "norm").pvalue < 1e-9
