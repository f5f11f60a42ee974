"""Poisson sampling of users (ULS): each user joins each step by a coin of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from userdp.sampling.base import Sampling, Words, probability_of
from userdp.vocabulary import PrivacyUnit, require_probability

if TYPE_CHECKING:
    import numpy as np

    from userdp.accounting.mechanisms import Mixture, NoisySteps
    from userdp.sampling.coins import Indices


@dataclass(frozen=True, kw_only=True)
class Poisson(Sampling):
    """Every unit joins every step independently with one probability.

    Args:
        sampling_probability: q of each user, or p of each example; in (0, 1].
    """

    sampling_probability: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require_probability("sampling_probability", self.sampling_probability)

    @classmethod
    def of_size(cls, size: float, *, population: int, group_size: int, **bounds: Any) -> Self:
        name = "cohort_size" if cls.unit is PrivacyUnit.USER else "batch_size"
        probability = probability_of(size, population, name=name)
        return cls(sampling_probability=probability, group_size=group_size, **bounds)

    def chance(self, total: int) -> float:
        return self.sampling_probability

    def draws(self, total: int, generator: np.random.Generator) -> Iterator[Indices]:
        from userdp.sampling.coins import poisson_indices

        while True:
            yield poisson_indices(generator, total, self.sampling_probability)

    def _priced(self, noise_multiplier: float, steps: int) -> NoisySteps:
        return self._mixture(noise_multiplier, steps)

    def _mixture(self, noise_multiplier: float, steps: int) -> Mixture:
        """N(Binom(k, p), σ²) against N(0, σ²), k the units of one user; cited by each kind."""
        from userdp.accounting.mechanisms import binomial_steps

        return binomial_steps(
            sampling_probability=self.sampling_probability,
            group_size=self.items,
            noise_multiplier=noise_multiplier,
            steps=steps,
        )


@dataclass(frozen=True, kw_only=True)
class PoissonUsers(Poisson):
    """ULS: each user joins each step independently with probability q.

    Guarantee: T steps of DP-SGD-ULS (Charles et al. 2024, Algorithm 2) are dominated, per user
    under add-or-remove adjacency, by N(Bern(q), σ²)^T against N(0, σ²)^T (Theorem 2, Eq. 3). The
    bound is attained. Under zero-out adjacency it is the same pair: a zeroed user's draws change
    nothing in the sum, just as an absent user's.
    """

    kind: ClassVar[str] = "users"
    algorithm: ClassVar[str] = "ULS"
    unit: ClassVar[PrivacyUnit] = PrivacyUnit.USER
    words: ClassVar[Words] = Words(
        title="Poisson sampling of users",
        draw="each user joins each step independently with probability q",
        options={
            "group_size": "most examples of a user in a step",
            "sampling_probability": "q, of each user at each step",
        },
        symbols={"sampling_probability": "q"},
    )
