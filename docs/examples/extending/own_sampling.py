"""A sampling of your own, with its price: every user takes part in every step.

Where few users hold much text each (some dozen departments, say), drawing them hardly amplifies
privacy, and the noise of a drawn cohort is a nuisance. Here nothing is drawn. One user more moves
each step's sum by at most C, so T steps with noise σC are T Gaussian mechanisms of sensitivity 1 in
units of the clip norm: N(1, σ²)^T against N(0, σ²)^T, in both directions (Balle and Wang 2018,
Theorem 8, with μ = √T / σ). A resumed run draws anew, so each step's draw must be independent of
all others: here it trivially is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from userdp.accounting import NoisySteps, gaussian_steps
from userdp.core.vocabulary import PrivacyUnit
from userdp.sampling import Sampling
from userdp.sampling.base import Indices, Words


@dataclass(frozen=True, kw_only=True)
class EveryUser(Sampling):
    """ULS without sampling: each user joins each step."""

    kind: ClassVar[str] = "every-user"
    algorithm: ClassVar[str] = "ULS"
    unit: ClassVar[PrivacyUnit] = PrivacyUnit.USER
    words: ClassVar[Words] = Words(
        title="Every user at every step",
        draw="each user joins each step",
        options={"group_size": "most examples of a user in a step"},
    )

    @classmethod
    def of_size(cls, size: float, *, population: int, group_size: int, **bounds: Any) -> Self:
        """The cohort is the declared population, whatever size is asked for."""
        return cls(group_size=group_size, **bounds)

    def chance(self, total: int) -> float:
        return 1.0

    def _priced(self, noise_multiplier: float, steps: int) -> NoisySteps:
        return gaussian_steps(noise_multiplier=noise_multiplier, steps=steps)

    def draws(self, total: int, generator: np.random.Generator) -> Iterator[Indices]:
        while True:
            yield np.arange(total, dtype=np.int64)
