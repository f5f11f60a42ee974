"""Fixed-graph adjacency: the price of exchanging one user's examples, against the worst pair."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from userdp.accounting.accountants import calibrate
from userdp.accounting.mechanisms import Exchanged, binomial_steps

SETTINGS = [  # G, steps, p, sigma, epsilon
    (2, 1, 0.9, 0.7, 1.0),
    (1, 10, 0.5, 2.0, 1.0),
    (4, 1, 0.5, 1.5, 0.5),
    (2, 3, 0.5, 1.5, 0.5),
    (3, 20, 0.1, 2.0, 2.0),
    (2, 100, 0.02, 1.5, 1.0),
]


def attack_delta(first, second, weights, sigma, steps, eps):
    """H_{e^eps}(Q^T, P^T) of two mixtures on a grid of losses, convolved by FFT; good to 1e-3.

    P = sum_k weights[k] N(first[k], sigma^2), Q the same at ``second``.
    """
    low, high = min(first.min(), second.min()), max(first.max(), second.max())
    x = np.linspace(low - 9 * sigma, high + 9 * sigma, 100_001)

    def density(shifts):
        return (weights * norm.pdf((x[:, None] - shifts) / sigma)).sum(1)

    p, q = density(first), density(second)
    step, size = 1e-3, 1 << 18
    place = np.rint((np.log(q) - np.log(p)) / step).astype(int)
    inside = np.abs(place) < size // 2 - 1
    mass = np.bincount(place[inside] % size, (q / q.sum())[inside], minlength=size)
    total = np.fft.irfft(np.fft.rfft(mass) ** steps, size)
    losses = np.fft.fftfreq(size, 1 / size) * step
    above = losses > eps
    return float((total[above] * -np.expm1(eps - losses[above])).sum())


def shifts_of(group, p):
    k = np.arange(group + 1.0)
    return k, binom.pmf(k, group, p)


def priced(group, steps, p, sigma):
    return Exchanged(
        mixture=binomial_steps(
            sampling_probability=p, group_size=group, noise_multiplier=sigma, steps=steps
        )
    )


@pytest.mark.parametrize(("group", "steps", "p", "sigma", "eps"), SETTINGS)
def test_invariant_8_the_price_covers_turned_gradients_and_the_cheap_twin_is_caught(
    group, steps, p, sigma, eps
):
    """The twin: the price of adding or removing a user."""
    k, weights = shifts_of(group, p)
    attained = attack_delta(-k, k, weights, sigma, steps, eps)
    found = priced(group, steps, p, sigma)
    assert found.delta(eps).upper >= attained * (1 - 1e-3)
    assert found.delta(eps).lower <= attained * (1 + 1e-3)
    assert attained > 1.01 * found.mixture.delta(eps).upper


@pytest.mark.parametrize(("group", "steps", "p", "sigma", "eps"), [SETTINGS[0], SETTINGS[2]])
def test_invariant_8_twin_the_mixture_of_twice_the_shift_is_caught(group, steps, p, sigma, eps):
    """N(2 Binom(G, p)) against N(0) is below a pair that can happen, in both directions."""
    k, weights = shifts_of(group, p)
    attained = attack_delta(-k, k, weights, sigma, steps, eps)
    zero = np.zeros_like(k)
    for pair in ((zero, 2 * k), (2 * k, zero)):
        assert attained > 1.02 * attack_delta(*pair, weights, sigma, steps, eps)


def test_the_oracle_is_the_closed_form_where_everybody_takes_part():
    mu, eps = 2 * 2 * math.sqrt(3) / 4.0, 1.0
    exact = norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu)
    one = np.ones(1)
    assert attack_delta(-2 * one, 2 * one, one, 4.0, 3, eps) == pytest.approx(exact, rel=1e-3)
    # and at p = 1 the price is attained
    assert priced(2, 3, 1.0, 4.0).delta(eps).upper == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("p", "group"), [(0.01, 4), (1.0, 2)])
def test_calibration_stays_within_the_budget_and_wastes_nothing(p, group):
    found = calibrate(priced(group, 50, p, 1.0), target_epsilon=2.0, target_delta=1e-6)
    assert 2.0 * (1 - 1e-4) < found.epsilon(1e-6).upper <= 2.0
    assert found.delta(2.0).upper <= 1e-6 * (1 + 1e-6)
