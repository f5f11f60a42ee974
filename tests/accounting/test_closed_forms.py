"""The closed forms' own allowances for rounding hold at every size, against 60 digits."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest

from userdp.accounting.contour import phase_of
from userdp.accounting.contour.closed import (
    _mills_gap,
    gaussian_delta,
    single_step_delta,
    single_step_epsilon,
)
from userdp.accounting.contour.compose import _total_variation
from userdp.accounting.laws import Binomial


def mills(t: mp.mpf) -> mp.mpf:
    return mp.sqrt(mp.pi / 2) * mp.erfc(t / mp.sqrt(2)) * mp.exp(t * t / 2)


@pytest.mark.parametrize("z", [-1.0, 0.0, 0.5, 3.0, 20.0, 300.0, 5e3])
@pytest.mark.parametrize("mu", [1e-9, 1e-4, 0.03])
def test_the_difference_of_mills_ratios_is_enclosed_and_not_much_wider(z: float, mu: float) -> None:
    with mp.workdps(60):
        truth = mills(mp.mpf(z)) - mills(mp.mpf(z) + mp.mpf(mu))
        low, high = _mills_gap(z, mu)
        assert low <= truth <= high
        assert high - low <= 1e-14 * (2 + abs(z)) * mu


@pytest.mark.parametrize("mu", [1e-6, 1e-2, 1.0, 7.0])
@pytest.mark.parametrize("spreads", [-3.0, 0.0, 1.0, 6.0, 12.0, 25.0])
def test_delta_of_a_gaussian_is_enclosed_far_into_its_tail(mu: float, spreads: float) -> None:
    epsilon = mu * (spreads + 0.5 * mu)
    if epsilon < 0:
        return
    with mp.workdps(60):
        m, e = mp.mpf(mu), mp.mpf(epsilon)
        truth = mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)
        found = gaussian_delta(mu, epsilon)
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


@pytest.mark.parametrize("p", [1e-3, 1e-9, 1e-15])
@pytest.mark.parametrize("remove", [True, False])
def test_rare_participation_costs_one_step_no_digits(p: float, remove: bool) -> None:
    """delta(0) of (1-p) N(0, 1) + p N(1, 1) against N(0, 1) is p (2 Phi(1/2) - 1)."""
    phase = phase_of(Binomial(trials=1, probability=p), noise_multiplier=1.0, count=1)
    found = single_step_delta(phase, 0.0, remove=remove)
    assert found is not None
    with mp.workdps(40):
        truth = mp.mpf(p) * (2 * mp.ncdf(mp.mpf(1) / 2) - 1)
        assert found.lower <= truth <= found.upper
        assert found.upper - found.lower <= 1e-10 * truth


def test_many_rare_steps_add_up_their_total_variations() -> None:
    """An upper bound of delta(0), by the triangle inequality; less than what is certain."""
    phases = tuple(
        phase_of(Binomial(trials=1, probability=p), noise_multiplier=1.0, count=10)
        for p in (1e-4, 3e-4)
    )
    with mp.workdps(40):
        truth = 10 * 4e-4 * (2 * mp.ncdf(mp.mpf(1) / 2) - 1)
        found = _total_variation(phases, 1e-4)
        assert truth <= found <= truth * (1 + 1e-8)


def test_one_step_within_delta_by_itself_has_no_epsilon() -> None:
    phase = phase_of(Binomial(trials=1, probability=0.01), noise_multiplier=1.0, count=1)
    found = single_step_epsilon(phase, 0.5, remove=True)
    assert found is not None
    assert (found.lower, found.upper) == (0.0, 0.0)
