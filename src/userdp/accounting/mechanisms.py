"""What a run does, as frozen values that know their price: mechanisms.

A mechanism is a tuple of public constants. ``epsilon(delta)`` and ``delta(epsilon)`` return a
certified `Bracket`; report its ``upper``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from userdp.accounting import dp_accounting_backend
from userdp.accounting.bracket import Bracket
from userdp.guarantees import (
    Adjacency,
    Sampling,
    require_count,
    require_delta,
    require_epsilon,
    require_positive,
    require_probability,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PoissonUsers:
    """ULS: each user joins each step independently with probability q.

    Guarantee: T steps of DP-SGD-ULS (Charles et al. 2024, Algorithm 2) are
    (ε, δ(ε))-DP per user under add-or-remove adjacency with
    δ(ε) = H_{e^ε}(N(0, σ²)^T, N(Bern(q), σ²)^T), the worse of both directions (Theorem 2, Eq. 3).

    Args:
        sampling_probability: q, in (0, 1].
        noise_multiplier: σ, the noise's standard deviation divided by the clip norm; > 0.
        steps: T, noisy updates released; at least 1.

    Raises:
        ValueError: a parameter is out of its range (NaN included).
    """

    sampling_probability: float
    noise_multiplier: float
    steps: int

    sampling = Sampling.USERS
    adjacency = Adjacency.ADD_OR_REMOVE
    group_size = 1

    def __post_init__(self) -> None:
        require_probability("sampling_probability", self.sampling_probability)
        require_positive("noise_multiplier", self.noise_multiplier)
        require_count("steps", self.steps)

    def with_steps(self, steps: int) -> Self:
        """The same mechanism run for another number of steps."""
        return replace(self, steps=steps)

    def with_noise_multiplier(self, noise_multiplier: float) -> Self:
        """The same mechanism with other noise."""
        return replace(self, noise_multiplier=noise_multiplier)

    def epsilon(self, delta: float) -> Bracket:
        """Certified bounds of the least ε at this δ, in (0, 1)."""
        return dp_accounting_backend.epsilon(self.dp_event(), require_delta(delta))

    def delta(self, epsilon: float) -> Bracket:
        """Certified bounds of the least δ at this ε, >= 0."""
        return dp_accounting_backend.delta(self.dp_event(), require_epsilon(epsilon))

    def dp_event(self) -> Any:
        """The mechanism as a ``dp_accounting.DpEvent`` (needs the extra ``dp-accounting``)."""
        return dp_accounting_backend.mixture_event(
            group_size=1,
            sampling_probability=self.sampling_probability,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PoissonExamples:
    """ELS: each example joins each step independently with probability p; G examples per user.

    Guarantee: T steps of DP-SGD-ELS (Charles et al. 2024, Algorithm 1) on data to which no user
    contributes more than G examples are (ε, δ(ε))-DP per user under add-or-remove adjacency with
    δ(ε) = H_{e^ε}(N(0, σ²)^T, N(Binom(G, p), σ²)^T), the worse of both directions
    (Theorems 1 and 3; Ganesh 2024, Theorem 3.1). The bound is attained.

    Args:
        sampling_probability: p, in (0, 1].
        group_size: G, most examples of one user in the training set; at least 1.
        noise_multiplier: σ, the noise's standard deviation divided by the clip norm; > 0.
        steps: T, noisy updates released; at least 1.

    Raises:
        ValueError: a parameter is out of its range (NaN included).
    """

    sampling_probability: float
    group_size: int
    noise_multiplier: float
    steps: int

    sampling = Sampling.EXAMPLES
    adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        require_probability("sampling_probability", self.sampling_probability)
        require_count("group_size", self.group_size, at_most=10**6)
        require_positive("noise_multiplier", self.noise_multiplier)
        require_count("steps", self.steps)

    def with_steps(self, steps: int) -> Self:
        """The same mechanism run for another number of steps."""
        return replace(self, steps=steps)

    def with_noise_multiplier(self, noise_multiplier: float) -> Self:
        """The same mechanism with other noise."""
        return replace(self, noise_multiplier=noise_multiplier)

    def epsilon(self, delta: float) -> Bracket:
        """Certified bounds of the least ε at this δ, in (0, 1)."""
        return dp_accounting_backend.epsilon(self.dp_event(), require_delta(delta))

    def delta(self, epsilon: float) -> Bracket:
        """Certified bounds of the least δ at this ε, >= 0."""
        return dp_accounting_backend.delta(self.dp_event(), require_epsilon(epsilon))

    def dp_event(self) -> Any:
        """The mechanism as a ``dp_accounting.DpEvent`` (needs the extra ``dp-accounting``)."""
        return dp_accounting_backend.mixture_event(
            group_size=self.group_size,
            sampling_probability=self.sampling_probability,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps,
        )


Mechanism = PoissonUsers | PoissonExamples
