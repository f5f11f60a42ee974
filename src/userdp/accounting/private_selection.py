r"""The price of the best of a random number of candidates, in Rényi DP.

The base mechanism draws a candidate from a public grid, trains it and scores it under DP; its
output is the candidate, the weights and the score. It runs K times, and only the output with the
best score is released. If the base is (λ, ε(λ))-RDP at every order λ of a curve, then for
K from a truncated negative binomial law, with any λ̂ >= 1 (Papernot and Steinke 2022, Theorem 2)

.. math:: ε'(λ) = ε(λ) + (1+η)(1-1/λ̂) ε(λ̂) + (1+η) \log(1/γ)/λ̂ + \log(E[K])/(λ-1),

and for K from a Poisson law of mean μ (Theorem 6), if the base is (log(1+1/(λ-1)), δ̂)-DP,

.. math:: ε'(λ) = \log(e^{-μ} + μ e^{(λ-1)(ε(λ) + μ δ̂)}) / (λ-1).

Its e^{-μ} is for K = 0, an outcome of its own that is equally likely on both data sets; the printed
form, without it, is ε(λ) + μ δ̂ + log(μ)/(λ-1).

No such bound holds for a fixed K: the base's ε may be paid K times.

How many candidates are tried is drawn exactly: sums and products of rationals, no rounding, so that
what is drawn is the very law that is priced.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

from userdp.accounting import rdp
from userdp.accounting.bracket import Bracket
from userdp.accounting.certified_search import bisect
from userdp.accounting.mechanisms import NoisySteps
from userdp.core.errors import UseError
from userdp.core.vocabulary import require_delta, require_positive

_UP = 1 + 1e-12
_MOST = 1e4


@dataclass(frozen=True, kw_only=True, slots=True)
class TruncatedNegativeBinomial:
    """K >= 1 with P[K=k] ∝ (1-γ)^k Π_{l<k} (l+η)/(l+1): geometric at η = 1, logarithmic at η = 0.

    Args:
        eta: η, in (-1, 1]; smaller ones cost less at the same mean, with a heavier tail.
        gamma: γ, in (0, 1), a constant; smaller means more candidates.

    Raises:
        UseError: a parameter is out of its range.

    Source: Papernot and Steinke 2022 (arXiv:2110.03620), Definition 1.
    """

    kind: ClassVar[str] = "truncated-negative-binomial"

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not -1 < self.eta <= 1:
            raise UseError(f"eta must be greater than -1 and at most 1, got {self.eta!r}")
        if not 1e-12 < self.gamma < 1:
            raise UseError(f"gamma must be greater than 1e-12 and less than 1, got {self.gamma!r}")

    @classmethod
    def of_mean(cls, mean: float, *, eta: float) -> Self:
        """The law with about this mean, greater than 1 and at most 10,000.

        >>> TruncatedNegativeBinomial.of_mean(8.0, eta=1.0).gamma
        0.125
        """
        if not 1 < mean <= _MOST:
            raise UseError(
                f"the mean number of candidates must be greater than 1 and at most {_MOST:g}, "
                f"got {mean!r}: with one candidate there is nothing to choose",
                hint="train it without a sweep",
            )
        if eta == 1:
            return cls(eta=eta, gamma=1 / mean)
        gamma = bisect(lambda log_gamma: _mean(eta, log_gamma) <= mean, math.log(1e-12), -1e-12)
        return cls(eta=eta, gamma=math.exp(gamma))

    @property
    def mean(self) -> float:
        """E[K], rounded up."""
        return _mean(self.eta, math.log(self.gamma)) * _UP

    def draw(self) -> int:
        """K, from the operating system's randomness.

        A geometric number is accepted with probability Π_{0<l<K} (l+η)/(l+1), factor by factor,
        each at most 1.
        """
        gamma, eta = Fraction(self.gamma), Fraction(self.eta)
        count = 1
        while not _happens(gamma):
            kept = eta == 1 or _happens((count + eta) / (count + 1))
            count = count + 1 if kept else 1
        return count


@dataclass(frozen=True, kw_only=True, slots=True)
class PoissonNumber:
    """K from a Poisson law; at K = 0 nothing is trained, and nothing is released.

    Args:
        mu: its mean, in (0, 10,000].

    Source: Papernot and Steinke 2022 (arXiv:2110.03620), Section 3.3.
    """

    kind: ClassVar[str] = "poisson"

    mu: float

    def __post_init__(self) -> None:
        require_positive("the mean number of candidates", self.mu, at_most=_MOST)

    @property
    def mean(self) -> float:
        """E[K]."""
        return self.mu

    def draw(self) -> int:
        """K, from the operating system's randomness.

        A sum of Poisson numbers of mean t <= 1. Each: k with probability 2^-(k+1), accepted with
        probability (2t)^k / (2 k!), at most 1.
        """
        parts = math.ceil(self.mu)
        mean = Fraction(self.mu) / parts
        return sum(_small_poisson(mean) for _ in range(parts))


Repetitions = TruncatedNegativeBinomial | PoissonNumber


def _small_poisson(mean: Fraction) -> int:
    while True:
        count = 0
        while secrets.randbits(1):
            count += 1
        if _happens((2 * mean) ** count / (2 * math.factorial(count))):
            return count


def _happens(probability: Fraction) -> bool:
    """True with exactly this probability."""
    return secrets.randbelow(probability.denominator) < probability.numerator


def _mean(eta: float, log_gamma: float) -> float:
    """η (1-γ) / (γ (1 - γ^η)), and its limit (1/γ - 1) / log(1/γ) at η = 0."""
    odds = math.expm1(-log_gamma)
    spread = -math.expm1(eta * log_gamma) / eta if eta else -log_gamma
    return odds / spread


ACCOUNTANT = "rdp-private-selection"

Curve = Mapping[float, float]

"""Upper bounds of the Rényi divergence, both directions, by order."""


def pure_divergence(order: float, pure_epsilon: float) -> float:
    """An upper bound of the Rényi divergence of any (ε, 0)-DP answer at this order.

    Randomised response dominates them all (Kairouz, Oh and Viswanath 2015, Theorem 3.4): with
    p = e^ε/(1+e^ε) the moment is p^α (1-p)^{1-α} + (1-p)^α p^{1-α}.

    >>> round(pure_divergence(2.0, 1.0), 6), round(pure_divergence(1e6, 1.0), 4)
    (0.735326, 1.0)
    """
    require_positive("pure_epsilon", pure_epsilon, at_most=700.0)
    if not 1 < order < math.inf:
        raise UseError(f"order must be finite and greater than 1, got {order!r}")
    # log of the moment: log p + (α-1)ε + log(1 + e^{-(2α-1)ε})
    log_p = -math.log1p(math.exp(-pure_epsilon))
    tail = math.log1p(math.exp(-(2 * order - 1) * pure_epsilon))
    value = pure_epsilon + (log_p + tail) / (order - 1)
    return min(pure_epsilon, max(value, 0.0) * _UP + 1e-15 / (order - 1))


def base_curve(
    mechanisms: Sequence[NoisySteps],
    *,
    score_epsilon: float,
    orders: Sequence[float] = rdp.ORDERS,
) -> dict[float, float]:
    """RDP of: draw one of ``mechanisms`` by public chance, run it, and score it under DP.

    Guarantee: an upper bound at each order. Which mechanism was drawn is part of the output, so
    the worst of them bounds the mixture; the score composes with it.

    Args:
        mechanisms: training, for each plan of the grid; at least one.
        score_epsilon: the score is (ε, 0)-DP per user, add-or-remove.
        orders: each above 1.

    Raises:
        UseError: one of them has no Rényi divergence here, see `rdp.has_curve`.
    """
    if not mechanisms:
        raise UseError("a selection needs at least one candidate, got none")
    curves = [rdp.step_curve(mechanism, orders) for mechanism in mechanisms]
    return {
        order: max(curve[order] for curve in curves) + pure_divergence(order, score_epsilon)
        for order in orders
    }


def selected_curve(base: Curve, repetitions: Repetitions) -> dict[float, float]:
    """RDP of the best of a random number of independent runs of a base mechanism, by order.

    Guarantee: an upper bound at each order of ``base``, if each run is independent, their number
    is from ``repetitions`` and nothing of the others, their number included, is released.

    Source: Papernot and Steinke 2022 (arXiv:2110.03620), Theorems 2 and 6.
    """
    if isinstance(repetitions, TruncatedNegativeBinomial):
        power, log_gamma = 1 + repetitions.eta, math.log(repetitions.gamma)
        choosing = -log_gamma  # λ̂ = 1
        for order, rho in base.items():
            choosing = min(choosing, (1 - 1 / order) * rho - log_gamma / order)
        extra, log_mean = power * choosing, math.log(repetitions.mean)
        return {order: (rho + extra + log_mean / (order - 1)) * _UP for order, rho in base.items()}
    mu = repetitions.mu
    curve = {}
    for order, rho in base.items():
        close = math.log1p(1 / (order - 1)) * (1 - 1e-15)
        inner = (order - 1) * (rho + mu * rdp.delta_of_curve(base, close)) + math.log(mu)
        total = max(inner, -mu) + math.log1p(math.exp(-abs(inner + mu)))
        curve[order] = max(total, 0.0) / (order - 1) * _UP
    return curve


def selection_epsilon(base: Curve, repetitions: Repetitions, delta: float) -> Bracket:
    """ε of the winner at ``delta``, from above: lower is 0.

    Args:
        base: of the base mechanism, see `base_curve`.
        repetitions: the law of K.
        delta: in (0, 1).
    """
    upper = rdp.epsilon_of_curve(selected_curve(base, repetitions), require_delta(delta))
    return Bracket(lower=0.0, upper=upper, accountant=ACCOUNTANT, note="an upper bound only")
