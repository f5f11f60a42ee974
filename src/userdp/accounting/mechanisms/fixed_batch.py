"""Batches of a fixed size, drawn without replacement at each step: of examples, and of users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from userdp.accounting.contour import Phase, hypergeometric_phase
from userdp.accounting.mechanisms.base import SampledMechanism
from userdp.errors import UseError
from userdp.guarantees import Sampling, require_count


def _require_batch(name: str, size: int, population: int) -> None:
    require_count(name, size)
    require_count("population", population)
    if size > population:
        raise UseError(
            f"{name} must be at most population, got {size} of {population}: the population is a "
            "lower bound on the smaller data set, and a batch is drawn from it without replacement"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedBatchExamples(SampledMechanism):
    """Exactly B of at least n examples per step, without replacement; G examples per user.

    Guarantee: T steps are (ε, δ(ε))-DP per user under add-or-remove adjacency among data sets of at
    least ``population`` examples, dominated by N(2·Hypergeom(B, n + G, G), σ²) against N(0, σ²): a
    user's example that is drawn also displaces another one, hence the 2 (Ganesh 2024, Theorem 3.3,
    with G examples added to the smaller data set of n). The bound is attained.

    Args:
        batch_size: B, examples per step; at least 1.
        population: n, a *public lower bound* on the size of the smaller data set; at least B.
        group_size: G, most examples of one user; at least 1.
        noise_multiplier: σ, the noise's standard deviation divided by the clip norm; > 0.
        steps: T; at least 1.

    Raises:
        UseError: a parameter is out of its range (NaN included).
    """

    sampling: ClassVar[Sampling] = Sampling.FIXED_BATCH

    batch_size: int
    population: int
    group_size: int

    def __post_init__(self) -> None:
        _require_batch("batch_size", self.batch_size, self.population)
        require_count("group_size", self.group_size, at_most=10**6)
        SampledMechanism.__post_init__(self)

    def phases(self) -> tuple[Phase, ...]:
        return (
            hypergeometric_phase(
                batch_size=self.batch_size,
                population=self.population,
                group_size=self.group_size,
                noise_multiplier=self.noise_multiplier,
                count=self.steps,
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedBatchUsers(SampledMechanism):
    """Exactly M of at least N users per step, without replacement.

    Guarantee: as `FixedBatchExamples` with one item per user: 2·Bernoulli(M / (N + 1)) (Ganesh
    2024, Theorem 3.3 with k = 1).

    Args:
        cohort_size: M, users per step; at least 1.
        population: N, a *public lower bound* on the users of the smaller data set; at least M.
        noise_multiplier: σ, the noise's standard deviation divided by the clip norm; > 0.
        steps: T; at least 1.

    Raises:
        UseError: a parameter is out of its range (NaN included).
    """

    sampling: ClassVar[Sampling] = Sampling.FIXED_BATCH

    cohort_size: int
    population: int

    def __post_init__(self) -> None:
        _require_batch("cohort_size", self.cohort_size, self.population)
        SampledMechanism.__post_init__(self)

    def phases(self) -> tuple[Phase, ...]:
        return (
            hypergeometric_phase(
                batch_size=self.cohort_size,
                population=self.population,
                group_size=1,
                noise_multiplier=self.noise_multiplier,
                count=self.steps,
            ),
        )
