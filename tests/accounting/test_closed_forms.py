"""The closed forms' own allowances for rounding hold at every size, against 60 digits."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest

from tests.accounting import oracles
from userdp.accounting.contour import phase_of
from userdp.accounting.contour.closed import (
    gaussian_delta,
    single_step_delta,
)
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
    for _ in range(60):
        p, sigma = 10 ** rng.uniform(-12, -0.5), 10 ** rng.uniform(-1.3, 0.5)
        epsilon = 10 ** rng.uniform(-6, 1.0)
        phase = phase_of(Binomial(trials=1, probability=p), noise_multiplier=sigma, count=1)
        found = single_step_delta(phase, epsilon, remove=remove)
        if found is None or found.upper < 1e-250:
            continue
        with mp.workdps(80):
            q, s, e = mp.mpf(p), mp.mpf(sigma), mp.exp(mp.mpf(epsilon))
            # the loss l(x) = log(1 - q + q e^{x/s - 1/(2 s^2)}) passes ±epsilon at x
            level = e if remove else 1 / e
            if (level - 1 + q) / q <= 0:
                continue  # the loss is never so low: delta is 0
            x = s * mp.log((level - 1 + q) / q) + 1 / (2 * s)
            mixture = (1 - q) * mp.ncdf(-x) + q * mp.ncdf(1 / s - x)
            if remove:
                truth = mixture - e * mp.ncdf(-x)
            else:
                truth = mp.ncdf(x) - e * (1 - mixture)
            assert found.lower <= truth <= found.upper, (p, sigma, epsilon)
