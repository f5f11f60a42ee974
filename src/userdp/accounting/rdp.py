r"""Rényi DP of the mixture of Gaussians: a second opinion, from above only.

P = N(0, σ²), Q = N(Binom(G, p), σ²), ℓ = log Q/P, z = x/σ. *remove* is R_α(Q, P), *add* R_α(P, Q).
All moments are trapezoidal sums over z, with a bound on what the sum and its ends leave out.

**Remove, whole α** (Charles et al. 2024, Appendix C, the left side of Lemma 1). With c_1..c_α
independent Binom(G, p), E_P[(Q/P)^α] = E exp(((Σ c_i)² - Σ c_i²) / 2σ²). The sum has (G+1)^α terms,
but the same algebra says

    N(x; 0, σ²) (Q(x)/P(x))^α = Σ_s A_s N(x; s, σ²),    A_s >= 0, s = 0 .. αG,

and the wanted number is Σ_s A_s. The trapezoidal sum of a Gaussian density with step h (in units
of σ) differs from 1 by at most 2.1·e^{-2π²/h²}, wherever its centre is (Poisson summation); so the
sum over z gives Σ A_s to that *relative* error: 1e-19 for h = 2/3. Leaving out what is further
than 10 from [0, αG/σ] loses at most 1e-22 of it.

**Remove, real α.** Q/P is a polynomial in t = e^{x/σ²} with positive coefficients, and all its
zeros are negative (the binomial's are, and e^{-k²/2σ²} is a multiplier sequence). So (Q/P)^α is
analytic for |Im z| < πσ, where |Q/P| is at most its value at |t|, and the trapezoidal sum has a
relative error of at most 2e^{a²/2} / (e^{2πa/h} - 1) for any a < πσ. To the right of
Z = αG/σ + r, by convexity (Σ B_k r_k)^α <= Σ B_k r_k^α, at most Φ(-r)·Σ B_k e^{α(α-1)k²/2σ²} is
lost, and the moment is at least B_k^α e^{α(α-1)k²/2σ²} for each k: relative, at most
(G+1)·Φ(-r)·(min B)^{1-α}, which sets r. To the left of -10, where Q/P is smaller than anywhere to
the right, less than 1e-22.

**Add.** E_Q[(P/Q)^α] = E_P[e^{-(α-1)ℓ}]. By the zeros, |Q/P| >= (1-p)^G wherever Re t >= 0, that is
for |Im z| <= πσ/2. The absolute error is at most 2 e^{a²/2} (1-p)^{-G(α-1)} / (e^{2πa/h} - 1) with
a = min(πσ/2, 6), and the moment is at least 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeGuard

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from userdp.accounting.item_count_laws import Binomial
from userdp.accounting.mechanisms import Mixture, NoisySteps
from userdp.core.errors import UseError
from userdp.core.vocabulary import (
    require_count,
    require_delta,
    require_epsilon,
    require_noise_multiplier,
    require_probability,
)

Array = npt.NDArray[np.float64]

ACCOUNTANT = "rdp"

#: Real orders near 1 serve large ε, the sparse upper ones small ε (few, noisy steps).
ORDERS: tuple[float, ...] = (
    *(1.01, 1.02, 1.03, 1.05, 1.07, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9),
    *(2.0, 2.25, 2.5, 2.75, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5),
    *(float(order) for order in range(6, 33)),
    *(36.0, 40.0, 48.0, 56.0, 64.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0),
)

_MAX_CELLS = 40_000_000  # grid points times binomial terms; beyond it an order is left out


def renyi_divergence(
    order: float, *, sampling_probability: float, noise_multiplier: float, group_size: int
) -> tuple[float, float]:
    """Upper bounds of (R_α(Q, P), R_α(P, Q)) of one step: remove, then add.

    Guarantee: neither is below the true divergence: `_log_moment` adds what rounding may have
    taken off, a few 1e-15 of the size of the exponents. ``inf`` for an order whose grid would be
    larger than 4e7 cells.

    Args:
        order: α, greater than 1, at most 2^20.
        sampling_probability: p, in (0, 1].
        noise_multiplier: σ, in [1e-30, 1e30].
        group_size: G >= 1.

    Raises:
        ValueError: a parameter is out of range (NaN included).

    Source: Charles et al. 2024, Appendix C (remove, whole α); this module's head (the rest).
    """
    if not 1 < order <= 1 << 20:
        raise ValueError(f"order must be greater than 1 and at most {1 << 20}, got {order!r}")
    p = require_probability("sampling_probability", sampling_probability)
    sigma = require_noise_multiplier(noise_multiplier)
    group_size = require_count("group_size", group_size, at_most=1 << 20)
    if p == 1:
        exact = order * (group_size / sigma) ** 2 / 2 * (1 + 1e-15)
        return exact, exact
    return _log_moment_remove(order, p, sigma, group_size) / (order - 1), _log_moment_add(
        order, p, sigma, group_size
    ) / (order - 1)


def has_curve(mechanism: NoisySteps) -> TypeGuard[Mixture]:
    """Whether its Rényi divergences are known: steps with a binomial law in clip norms."""
    return (
        isinstance(mechanism, Mixture)
        and isinstance(mechanism.law, Binomial)
        and mechanism.scale == 1
    )


def step_curve(mechanism: NoisySteps, orders: Sequence[float] = ORDERS) -> dict[float, float]:
    """Upper bounds of the Rényi divergence of all steps together, by order.

    Guarantee: the larger of both directions, add and remove, at each order; ``inf`` for an order
    without a bound. `epsilon_of_curve` and `delta_of_curve` turn it into a guarantee, which each
    order gives by itself.

    Args:
        mechanism: one that `has_curve`.
        orders: the orders tried, each above 1.

    Raises:
        UseError: the mechanism has no Rényi divergence here.
    """
    if not has_curve(mechanism):
        raise UseError(
            f"the Rényi divergence of {type(mechanism).__name__} is not known here: it is of steps "
            "in which each of a user's items joins by a coin of its own",
            hint="use the accountant contour",
        )
    law = mechanism.law
    assert isinstance(law, Binomial)
    return {order: mechanism.steps * of_one_step(mechanism, law, order) for order in orders}


def of_one_step(mechanism: Mixture, law: Binomial, order: float) -> float:
    """An upper bound of the Rényi divergence of one step of this law, remove or add."""
    noise = mechanism.noise_multiplier
    if mechanism.scale != 1:
        noise = math.nextafter(noise / mechanism.scale, 0.0)
    return max(
        renyi_divergence(
            order,
            sampling_probability=law.probability,
            noise_multiplier=noise,
            group_size=law.trials,
        )
    )


def epsilon_of_curve(curve: Mapping[float, float], delta: float) -> float:
    """The ε at ``delta`` of anything that is (α, ρ)-RDP for each pair of ``curve``, rounded up.

    Args:
        curve: ρ by order α > 1; an infinite ρ says nothing.
        delta: in (0, 1).

    Source: Canonne, Kamath and Steinke 2020 (arXiv:2004.00010), Proposition 12; the same in
    Balle et al. 2020 (arXiv:1905.09982), Theorem 21 and after.
    """
    log_delta = math.log(require_delta(delta))
    # δ = e^{(α-1)(ρ-ε)} (α-1)^{α-1} / α^α, solved for ε
    best = min(rho + (_log_kappa(order) - log_delta) / (order - 1) for order, rho in curve.items())
    return max(best, 0.0) * (1 + 1e-14)


def delta_of_curve(curve: Mapping[float, float], epsilon: float) -> float:
    """The δ at ``epsilon`` of anything with this RDP curve, rounded up; as `epsilon_of_curve`."""
    require_epsilon(epsilon)
    best = min((order - 1) * (rho - epsilon) + _log_kappa(order) for order, rho in curve.items())
    best = min(best, 0.0)  # log of δ = 1
    return max(min(math.exp(best) * (1 + 1e-13 * (1 - best)), 1.0), 5e-324)


def _log_kappa(order: float) -> float:
    """log((α-1)^{α-1} / α^α): the most by which the hockey stick lies under the moment."""
    return (order - 1) * math.log1p(-1 / order) - math.log(order)


@lru_cache(maxsize=64)
def _binomial(p: float, group_size: int) -> tuple[Array, Array]:
    """log Pr[Binom(G, p) = k], and the sum of the magnitudes it was added up from."""
    k = np.arange(group_size + 1, dtype=np.float64)
    choose = np.array([math.log(math.comb(group_size, i)) for i in range(group_size + 1)])
    hits, misses = k * math.log(p), (group_size - k) * math.log1p(-p)
    return choose + hits + misses, choose - hits - misses


def _losses(z: Array, p: float, sigma: float, group_size: int) -> tuple[Array, Array]:
    """ℓ at z = x/σ by log-sum-exp over k, and the mean magnitude of what entered it.

    ℓ = log Σ_k e^{b_k}, so an error d_k of each b_k moves ℓ by the mean of d_k under the weights
    e^{b_k - ℓ}; each b_k is off by a few roundings of the magnitudes it was summed from.
    Blocks of z keep the memory bounded.
    """
    k = np.arange(group_size + 1, dtype=np.float64)
    log_b, size_b = _binomial(p, group_size)
    half_square = (k / sigma) ** 2 / 2
    block = max(1, 1_000_000 // (group_size + 1))
    losses, sizes = np.empty_like(z), np.empty_like(z)
    for start in range(0, len(z), block):
        part = slice(start, start + block)
        cross = np.outer(z[part], k / sigma)
        terms = log_b - half_square + cross
        top = terms.max(axis=1, keepdims=True)
        weights = np.exp(terms - top)
        total = weights.sum(axis=1)
        losses[part] = top[:, 0] + np.log(total)
        magnitude = size_b + half_square + np.abs(cross)
        sizes[part] = (weights * magnitude).sum(axis=1) / total
    return losses, sizes


def _log_moment(
    power: float, low: float, length: float, h: float, p: float, sigma: float, group_size: int
) -> float:
    """log E_P[e^{power·ℓ}] by the trapezoidal sum over z, plus what rounding may have taken off.

    The sum goes from z = ``low`` over ``length`` in steps of h; inf where that is too much work.
    The allowance is 16 roundings of the mean magnitude of the exponents (a product, a sum and a
    log each), plus as many for log-sum-exp.
    """
    count = math.ceil(length / h) + 1
    if count * (group_size + 1) > _MAX_CELLS:
        return math.inf
    z = low + h * np.arange(count, dtype=np.float64)
    losses, sizes = _losses(z, p, sigma, group_size)
    exponent = power * losses - z * z / 2
    value = float(logsumexp(exponent))
    weights = np.exp(exponent - value)
    mean_size = float((weights * (abs(power) * (sizes + 1e-3) + z * z / 2)).sum())
    value += math.log(h / math.sqrt(2 * math.pi))
    return max(value, 0.0) + 16 * 2.0**-52 * (2 + mean_size)


@lru_cache(maxsize=4096)
def _log_moment_remove(order: float, p: float, sigma: float, group_size: int) -> float:
    h, margin = 2 / 3, 10.0
    if order != int(order):
        a = min(3.14 * sigma, 6.0)
        h = min(2 * math.pi * a / (44.0 + a * a / 2), h)
        log_rarest = float(_binomial(p, group_size)[0].min())
        margin = math.sqrt(2 * (50 + math.log(group_size + 1) - (order - 1) * log_rarest))
    length = order * group_size / sigma + 10 + margin
    return _log_moment(order, -10, length, h, p, sigma, group_size)


@lru_cache(maxsize=4096)
def _log_moment_add(order: float, p: float, sigma: float, group_size: int) -> float:
    a = min(math.pi * sigma / 2, 6.0)
    worst = -group_size * (order - 1) * math.log1p(-p)  # log of the largest e^{-(α-1)ℓ}
    h = min(2 * math.pi * a / (38.0 + a * a / 2 + worst), 2 / 3)
    reach = math.sqrt(2 * (worst + 45.0))  # beyond it lies at most e^worst·Pr[|z| > reach] < 1e-19
    return _log_moment(-(order - 1), -reach, 2 * reach, h, p, sigma, group_size)
