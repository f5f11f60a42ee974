"""What a step draws: a `Cohort` of units, and the interface of everything that draws one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.plan import StepRecord

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cohort:
    """The rows that one step uses, grouped into the units that are clipped.

    Under ULS a unit is a user with at most G of its examples; under ELS it is one example.

    Args:
        users: (rows,), the user of each row.
        examples: (rows,), the index of each row among its user's examples.
        offsets: (units + 1,), unit k is the rows ``offsets[k]:offsets[k + 1]``.
    """

    users: Indices
    examples: Indices
    offsets: Indices

    @property
    def units(self) -> int:
        """How many units were drawn; operator-only, like everything counted here."""
        return len(self.offsets) - 1

    @property
    def rows(self) -> int:
        """How many examples were drawn."""
        return len(self.users)

    def part(self, begin: int, end: int) -> Cohort:
        """Units ``begin:end`` as a cohort of their own."""
        first, last = self.offsets[begin], self.offsets[end]
        return Cohort(
            users=self.users[first:last],
            examples=self.examples[first:last],
            offsets=self.offsets[begin : end + 1] - first,
        )


class Sampler(ABC):
    """Draws one cohort per step, independently of all other steps and of what the data says."""

    @abstractmethod
    def draw(self) -> Cohort:
        """A fresh cohort; an empty one is a noise-only step and counts."""

    @abstractmethod
    def record(
        self, *, noise_std: float, l2_clip_norm: float, count_noise_std: float | None = None
    ) -> StepRecord:
        """What the ledger is to say of a step drawn by this sampler."""
