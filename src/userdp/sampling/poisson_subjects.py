"""Poisson sampling of examples, of which those of one subject make one unit (HiGradAvgDP)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from userdp.sampling.base import Words
from userdp.sampling.poisson_examples import OPTIONS
from userdp.sampling.poisson_users import Poisson
from userdp.vocabulary import PrivacyUnit, require_count, require_probability

if TYPE_CHECKING:
    from userdp.accounting.mechanisms import Mixture
    from userdp.sampling.coins import Indices


@dataclass(frozen=True, kw_only=True)
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
    unit: ClassVar[PrivacyUnit] = PrivacyUnit.EXAMPLE
    words: ClassVar[Words] = Words(
        title="Poisson sampling of subjects' examples",
        draw="each example joins each step independently with probability p, and those of one "
        "subject are averaged",
        options=OPTIONS,
        symbols={"sampling_probability": "p"},
    )

    def expected_units(self, population: int) -> float:
        return subject_probability(self.sampling_probability, self.group_size) * population

    def unit_offsets(self, users: Indices) -> Indices:
        import numpy as np

        begins = np.flatnonzero(np.diff(users, prepend=-1))
        return np.append(begins, len(users)).astype(np.int64)

    def _mixture(self, noise_multiplier: float, steps: int) -> Mixture:
        from userdp.accounting.mechanisms import binomial_steps

        return binomial_steps(
            sampling_probability=subject_probability(self.sampling_probability, self.group_size),
            noise_multiplier=noise_multiplier,
            steps=steps,
        )


def subject_probability(sampling_probability: float, group_size: int) -> float:
    """1 - (1 - p)^k, rounded up: the most likely a subject is to be in a step.

    >>> subject_probability(0.5, 2) >= 0.75
    True
    """
    p = require_probability("sampling_probability", sampling_probability)
    k = require_count("group_size", group_size)
    if p == 1:
        return 1.0
    # The factor is far above what expm1 and log1p round by, and below what any ε would show.
    return min(1.0, -math.expm1(k * math.log1p(-p)) * (1 + 1e-14))
