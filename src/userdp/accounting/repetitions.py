"""How many candidates a private selection tries: a random number, drawn exactly.

Best-of-K for a *fixed* K can cost K times its base. For the laws here the price of choosing is
small, because K tells nothing about which candidates were there (Papernot and Steinke 2022). What
is drawn is the very law that is priced: sums and products of rationals, no rounding.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

from userdp.accounting.roots import bisect
from userdp.errors import UseError
from userdp.vocabulary import require_positive

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
