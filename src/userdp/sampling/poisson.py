"""Poisson sampling: each user (ULS) or each example joins each step by a coin of its own.

Where examples are drawn, a unit is one of them (ELS); or, in a silo, all that was drawn of one
subject (HiGradAvgDP), or all that was drawn (UserLDP).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from userdp.core.errors import UseError
from userdp.core.vocabulary import PrivacyUnit, require_count, require_probability
from userdp.sampling.base import Sampling, Words

if TYPE_CHECKING:
    import numpy as np

    from userdp.accounting.mechanisms import Mixture, NoisySteps
    from userdp.sampling.base import Indices


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
        require_count("population", population)
        if not 0 < size <= population:
            name = "cohort_size" if cls.unit is PrivacyUnit.USER else "batch_size"
            raise UseError(
                f"{name} must be above 0 and at most population ({population}), got {size!r}: it "
                "is an expectation over the declared population"
            )
        return cls(sampling_probability=size / population, group_size=group_size, **bounds)

    def chance(self, total: int) -> float:
        return self.sampling_probability

    def draws(self, total: int, generator: np.random.Generator) -> Iterator[Indices]:
        from userdp.sampling.draws import poisson_indices

        while True:
            yield poisson_indices(generator, total, self.sampling_probability)

    def _priced(self, noise_multiplier: float, steps: int) -> NoisySteps:
        return self._mixture(noise_multiplier, steps)

    @property
    def _coins(self) -> tuple[float, int]:
        """The probability that a unit of one user is drawn, and how many units that user has."""
        return self.sampling_probability, self.items

    def _mixture(self, noise_multiplier: float, steps: int) -> Mixture:
        """N(Binom(k, p), σ²) against N(0, σ²), k the units of one user; cited by each kind."""
        from userdp.accounting.mechanisms import binomial_steps

        p, k = self._coins
        return binomial_steps(
            sampling_probability=p, group_size=k, noise_multiplier=noise_multiplier, steps=steps
        )


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


class PoissonExamples(Poisson):
    """ELS: each example joins each step independently with probability p; G examples per user.

    Guarantee: T steps of DP-SGD-ELS (Charles et al. 2024, Algorithm 1) on data to which no user
    contributes more than G examples are dominated, per user under add-or-remove adjacency, by
    N(Binom(G, p), σ²)^T against N(0, σ²)^T (Theorems 1 and 3; Ganesh 2024, Theorem 3.1). The bound
    is attained. Under zero-out adjacency it is the same pair: zeroed examples change nothing in the
    sum when they are drawn.
    """

    kind: ClassVar[str] = "examples"
    words: ClassVar[Words] = Words(
        title="Poisson sampling of examples",
        draw="each example joins each step independently with probability p",
        options={
            "group_size": "most examples of a user in all training",
            "sampling_probability": "p, of each example at each step",
        },
        symbols={"sampling_probability": "p"},
    )


class PoissonSubjects(Poisson):
    """Each example joins each step with probability p; a unit is a subject with what was drawn.

    Guarantee: T steps are dominated, per subject of at most G examples under add-or-remove
    adjacency, by N(Bern(q), σ²)^T against N(0, σ²)^T with q = 1 - (1 - p)^G: a subject of which
    nothing is drawn adds nothing, and any other adds one clipped unit (docs/federated.md,
    Proposition 2).

    The declared population is a number of *subjects*, and the denominator is what a step would
    draw of them if each held G examples: the drawn number itself would tell who is there.
    """

    kind: ClassVar[str] = "subjects"
    algorithm: ClassVar[str] = "HiGradAvgDP"
    words: ClassVar[Words] = replace(
        PoissonExamples.words,
        title="Poisson sampling of subjects' examples",
        draw=f"{PoissonExamples.words.draw}, and those of one subject are averaged",
    )

    def expected_units(self, population: int) -> float:
        return subject_probability(self.sampling_probability, self.group_size) * population

    def unit_offsets(self, users: Indices) -> Indices:
        import numpy as np

        begins = np.flatnonzero(np.diff(users, prepend=-1))
        return np.append(begins, len(users)).astype(np.int64)

    @property
    def _coins(self) -> tuple[float, int]:
        return subject_probability(self.sampling_probability, self.group_size), 1


class PoissonPooled(PoissonSubjects):
    """Each example joins each step with probability p; the one unit is all that was drawn.

    Guarantee: T steps are dominated, per subject of at most G examples under add-or-remove
    adjacency, by N(2 Bern(q), σ²)^T against N(0, σ²)^T with q = 1 - (1 - p)^G. If something of the
    subject is drawn, the mean gradient may change in any way; it is clipped to C in both worlds,
    so it moves by at most 2C (docs/federated.md, Proposition 3).
    """

    kind: ClassVar[str] = "pooled-examples"
    algorithm: ClassVar[str] = "UserLDP"
    words: ClassVar[Words] = replace(
        PoissonExamples.words,
        title="Poisson sampling of pooled examples",
        draw=f"{PoissonExamples.words.draw}, and all that were drawn are clipped as one",
    )

    def expected_units(self, population: int) -> float:
        return 1.0  # the mean over what was drawn is formed before the clip

    def unit_offsets(self, users: Indices) -> Indices:
        import numpy as np

        return np.array([0, len(users)] if len(users) else [0], dtype=np.int64)

    def _mixture(self, noise_multiplier: float, steps: int) -> Mixture:
        return replace(super()._mixture(noise_multiplier, steps), scale=2.0)


def subject_probability(sampling_probability: float, group_size: int) -> float:
    """1 - (1 - p)^k, rounded up: the most likely a subject is to be in a step.

    >>> subject_probability(0.5, 2) >= 0.75
    True
    """
    p = require_probability("sampling_probability", sampling_probability)
    k = require_count("group_size", group_size)
    # The factor is far above what expm1 and log1p round by, and below what any ε would show.
    return 1.0 if p == 1 else min(1.0, -math.expm1(k * math.log1p(-p)) * (1 + 1e-14))
