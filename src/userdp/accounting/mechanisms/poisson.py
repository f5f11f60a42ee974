"""Poisson sampling: of whole users (ULS), and of single examples (ELS)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from userdp.accounting.contour import Phase, binomial_phase
from userdp.accounting.mechanisms.base import SampledMechanism
from userdp.errors import UseError
from userdp.guarantees import (
    Adjacency,
    Sampling,
    require_count,
    require_probability,
)


def _require_adjacency(adjacency: Adjacency) -> None:
    if adjacency not in (Adjacency.ADD_OR_REMOVE, Adjacency.ZERO_OUT):
        raise UseError(
            f"measured_under must be add-or-remove or zero-out, got {adjacency}: the dominating "
            "pair of Poisson sampling is proven for these two only",
            hint="for replacement without amplification use FullParticipation with shift=2",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PoissonUsers(SampledMechanism):
    """ULS: each user joins each step independently with probability q.

    Guarantee: T steps of DP-SGD-ULS (Charles et al. 2024, Algorithm 2) are
    (ε, δ(ε))-DP per user under add-or-remove adjacency with
    δ(ε) = H_{e^ε}(N(0, σ²)^T, N(Bern(q), σ²)^T), the worse of both directions (Theorem 2, Eq. 3).
    The bound is attained. Under zero-out adjacency it is the same pair: a zeroed user's draws
    change nothing in the sum, just as an absent user's.

    Args:
        sampling_probability: q, in (0, 1].
        noise_multiplier: σ, the noise's standard deviation divided by the clip norm; > 0.
        steps: T, noisy updates released; at least 1.
        measured_under: add-or-remove or zero-out adjacency; replacement has another pair.

    Raises:
        UseError: a parameter is out of its range (NaN included).
    """

    sampling: ClassVar[Sampling] = Sampling.USERS

    sampling_probability: float
    measured_under: Adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        require_probability("sampling_probability", self.sampling_probability)
        SampledMechanism.__post_init__(self)
        _require_adjacency(self.measured_under)

    @property
    def adjacency(self) -> Adjacency:
        return self.measured_under

    def phases(self) -> tuple[Phase, ...]:
        return (
            binomial_phase(
                group_size=1,
                sampling_probability=self.sampling_probability,
                noise_multiplier=self.noise_multiplier,
                count=self.steps,
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PoissonExamples(SampledMechanism):
    """ELS: each example joins each step independently with probability p; G examples per user.

    Guarantee: T steps of DP-SGD-ELS (Charles et al. 2024, Algorithm 1) on data to which no user
    contributes more than G examples are (ε, δ(ε))-DP per user under add-or-remove adjacency with
    δ(ε) = H_{e^ε}(N(0, σ²)^T, N(Binom(G, p), σ²)^T), the worse of both directions
    (Theorems 1 and 3; Ganesh 2024, Theorem 3.1). The bound is attained. Under zero-out adjacency
    it is the same pair: zeroed examples change nothing in the sum when they are drawn.

    Args:
        sampling_probability: p, in (0, 1].
        group_size: G, most examples of one user in the training set; at least 1.
        noise_multiplier: σ, the noise's standard deviation divided by the clip norm; > 0.
        steps: T, noisy updates released; at least 1.
        measured_under: add-or-remove or zero-out adjacency; replacement has another pair.

    Raises:
        UseError: a parameter is out of its range (NaN included).
    """

    sampling: ClassVar[Sampling] = Sampling.EXAMPLES

    sampling_probability: float
    group_size: int
    measured_under: Adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        require_probability("sampling_probability", self.sampling_probability)
        require_count("group_size", self.group_size, at_most=10**6)
        SampledMechanism.__post_init__(self)
        _require_adjacency(self.measured_under)

    @property
    def adjacency(self) -> Adjacency:
        return self.measured_under

    def phases(self) -> tuple[Phase, ...]:
        return (
            binomial_phase(
                group_size=self.group_size,
                sampling_probability=self.sampling_probability,
                noise_multiplier=self.noise_multiplier,
                count=self.steps,
            ),
        )
