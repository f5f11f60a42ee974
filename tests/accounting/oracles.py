"""δ by ways that share no code with ours; and one direction of a pair by our own."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import mpmath as mp
import pytest

from userdp.accounting import Bracket, binomial_steps
from userdp.accounting.contour.curve import delta_bounds

GOLDEN: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("golden_deltas.json").read_text()
)["cases"]
"""40 compositions by 30-digit mpmath, with δ from 1e-3 to 1e-100 in both directions."""


BRANCH = (
    binomial_steps(
        sampling_probability=0.9733493053471883,
        group_size=46,
        noise_multiplier=10.168792074699509,
        steps=17023,
    ),
    3.588470814622538e-17,
    169834.8857011,
)
"""Where the principal branch of the logarithm misled the accountant once: mechanism, δ, and ε by
30-digit mpmath and by the proof."""


def mechanism_of(case):
    """The mechanism of a golden case."""
    return binomial_steps(
        sampling_probability=case["p"],
        group_size=case["group_size"],
        noise_multiplier=case["sigma"],
        steps=case["steps"],
    )


def one_way(pair, epsilon, *, remove):
    """Certified bounds of δ of one direction; an answer for both takes the larger of these."""
    found = delta_bounds(pair, epsilon, remove=remove)
    return Bracket(lower=found.lower, upper=found.upper, accountant="contour")


def gaussian_delta(mu, epsilon):
    """δ of a Gaussian mechanism with shift μ standard deviations, to 60 digits."""
    with mp.workdps(60):
        m, e = mp.mpf(mu), mp.mpf(epsilon)
        return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)


def one_step_delta(p, group_size, sigma, epsilon, *, remove):
    """δ of one step whose user joins with Binom(G, p) examples, to 60 digits.

    The likelihood ratio rises in x, so that the best set is a half-line from where it is e^±ε.
    """
    with mp.workdps(80):
        q, s, e = mp.mpf(p), mp.mpf(sigma), mp.exp(mp.mpf(epsilon))
        terms = ((k, mp.binomial(group_size, k) * q**k) for k in range(group_size + 1))
        terms = [(k, c * (1 - q) ** (group_size - k)) for k, c in terms if c > 1e-100]

        def ratio(x):
            return mp.fsum(c * mp.exp(k * x / s - k * k / (2 * s * s)) for k, c in terms)

        level = e if remove else 1 / e
        low, high = mp.mpf(-1000), mp.mpf(1000)
        if ratio(low) > level:
            return mp.mpf(0)  # no loss is so low
        for _ in range(280):
            middle = (low + high) / 2
            low, high = (middle, high) if ratio(middle) < level else (low, middle)
        above = mp.fsum(c * mp.ncdf(k / s - low) for k, c in terms)
        if remove:
            return above - e * mp.ncdf(-low)
        return mp.ncdf(low) - e * (1 - above)


def pld_bounds(parts, epsilon, grid=0.005):
    """Optimistic and pessimistic δ by dp-accounting, each within its FFT round-off of 1e-13.

    Each part has a σ, shifts, their chances and a number of steps.
    """
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")

    bounds = []
    for pessimistic in (False, True):
        losses = [
            pld.from_mixture_gaussian_mechanism(
                sigma,
                shifts,
                weights,
                pessimistic_estimate=pessimistic,
                value_discretization_interval=grid,
            ).self_compose(steps)
            for sigma, shifts, weights, steps in parts
        ]
        whole = functools.reduce(lambda one, other: one.compose(other), losses)
        bounds.append(whole.get_delta_for_epsilon(epsilon))
    return bounds
