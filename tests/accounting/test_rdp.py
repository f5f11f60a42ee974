"""Rényi moments against plain sums and mpmath quadrature, and the conversion against δ itself."""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest

from tests.accounting.oracles import GOLDEN, mechanism_of
from tests.speed import fast_then_slow
from userdp.accounting import binomial_steps, rdp


def weights(p, group_size):
    prob = mpmath.mpf(p)
    return [
        mpmath.binomial(group_size, k) * prob**k * (1 - prob) ** (group_size - k)
        for k in range(group_size + 1)
    ]


def lemma_sum(order, p, sigma, group_size):
    """R_α(Q, P) by the sum over c_1..c_α of Appendix C, term by term."""
    with mpmath.mp.workdps(30):
        b, total = weights(p, group_size), mpmath.mpf(0)
        for c in itertools.product(range(group_size + 1), repeat=order):
            exponent = (sum(c) ** 2 - sum(x * x for x in c)) / (2 * mpmath.mpf(sigma) ** 2)
            total += mpmath.fprod(b[x] for x in c) * mpmath.exp(exponent)
        return mpmath.log(total) / (order - 1)


def quadrature(power, p, sigma, group_size):
    """log E_P[(Q/P)^power]."""
    with mpmath.mp.workdps(30):
        b, s = weights(p, group_size), mpmath.mpf(sigma)

        def integrand(x):
            ratio = mpmath.fsum(
                w * mpmath.exp((2 * k * x - k * k) / (2 * s * s)) for k, w in enumerate(b)
            )
            return mpmath.npdf(x, 0, s) * ratio ** mpmath.mpf(power)

        high = max(power, 0) * group_size + 20 * sigma
        return mpmath.log(mpmath.quad(integrand, mpmath.linspace(-30 * s, high, 40)))


def both(order, p, sigma, group_size):
    return rdp.renyi_divergence(
        order, sampling_probability=p, noise_multiplier=sigma, group_size=group_size
    )


@pytest.mark.parametrize(
    ("order", "p", "sigma", "group_size"),
    [(2, 0.1, 1.0, 3), (4, 0.01, 0.5, 2), (3, 0.5, 2.0, 5), (5, 1e-4, 0.7, 2), (2, 0.3, 0.2, 20)],
)
def test_whole_orders_are_the_sum_of_appendix_c_rounded_up(order, p, sigma, group_size):
    exact, (remove, _) = lemma_sum(order, p, sigma, group_size), both(order, p, sigma, group_size)
    assert exact <= remove <= float(exact) * (1 + 1e-12) + 1e-13


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "p", "sigma", "group_size"),
    [(1.1, 0.1, 1.0, 3), (2.5, 0.01, 0.5, 2), (1.01, 0.5, 0.3, 5), (3.0, 0.9, 2.0, 6)],
)
def test_both_directions_are_the_integral_rounded_up(order, p, sigma, group_size):
    remove, add = both(order, p, sigma, group_size)
    for found, power in ((remove, order), (add, 1 - order)):
        exact = float(quadrature(power, p, sigma, group_size)) / (order - 1)
        assert exact * (1 - 1e-15) <= found <= exact * (1 + 1e-11) + 1e-12


@pytest.mark.parametrize(
    "case",
    [c for c in GOLDEN if c["group_size"] <= 8]
    + fast_then_slow((c for c in GOLDEN if 8 < c["group_size"] <= 64), fast=0),
    ids=lambda c: f"T={c['steps']} {c['p']}",
)
def test_the_upper_bound_of_delta_is_above_the_oracle(case):
    upper = rdp.delta_of_curve(rdp.step_curve(mechanism_of(case)), case["epsilon"])
    for direction in ("remove", "add"):
        assert upper >= float(case[direction]["delta"] or 0)


def test_without_an_order_nothing_is_claimed():
    huge = binomial_steps(sampling_probability=0.5, noise_multiplier=1e-3, group_size=512, steps=1)
    curve = rdp.step_curve(huge, (1024.0,))
    assert rdp.epsilon_of_curve(curve, 1e-6) == math.inf
    assert rdp.delta_of_curve(curve, 1.0) == 1.0
