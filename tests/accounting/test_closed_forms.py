"""One Gaussian mechanism and one step are enclosed at every size, against 60 digits."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest

from tests.accounting import oracles
from userdp.accounting.contour import pair_of
from userdp.accounting.contour.closed import gaussian_delta
from userdp.accounting.laws import Binomial


@pytest.mark.parametrize("mu", [1e-6, 1e-2, 1.0, 7.0])
@pytest.mark.parametrize("spreads", [-3.0, 0.0, 1.0, 6.0, 12.0, 25.0])
def test_delta_of_a_gaussian_is_enclosed_far_into_its_tail(mu: float, spreads: float) -> None:
    epsilon = mu * (spreads + 0.5 * mu)
    if epsilon < 0:
        return
    truth, found = oracles.gaussian_delta(mu, epsilon), gaussian_delta(mu, epsilon)
    with mp.workdps(60):
        assert found.lower <= truth <= found.upper
        assert found.upper - found.lower <= 1e-9 * truth


@pytest.mark.parametrize("remove", [True, False], ids=["remove", "add"])
def test_delta_of_one_rare_step_is_enclosed_far_into_its_tail(remove: bool) -> None:
    rng = np.random.default_rng(7)
    for _ in range(40):
        p, sigma = 10 ** rng.uniform(-12, -0.5), 10 ** rng.uniform(-1.3, 0.5)
        epsilon = 10 ** rng.uniform(-6, 1.0)
        pair = pair_of(Binomial(trials=1, probability=p), noise_multiplier=sigma, steps=1)
        found = oracles.one_way(pair, epsilon, remove=remove)
        truth = oracles.one_step_delta(p, 1, sigma, epsilon, remove=remove)
        assert found.lower <= truth <= found.upper, (p, sigma, epsilon)
