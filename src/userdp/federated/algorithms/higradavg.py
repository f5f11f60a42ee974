"""HiGradAvgDP: a local step adds, for each subject, the mean of its clipped item gradients."""

from __future__ import annotations

from typing import ClassVar

from userdp.federated.algorithms.base import Algorithm, Declared
from userdp.sampling import PoissonSubjects, Sampling


class HiGradAvg(Algorithm):
    """A unit is a subject with its drawn items, each of which is clipped before the mean.

    The mean of gradients of norm at most C has norm at most C, so that the clip of the unit
    changes nothing; it is what the engine states the sensitivity of.

    Source: Marathe et al. 2023, Algorithm 2; docs/federated.md, Proposition 2.
    """

    name: ClassVar[str] = "higradavg-dp"
    sampling: ClassVar[type[Sampling]] = PoissonSubjects
    clips_items: ClassVar[bool] = True

    def population(self, declared: Declared) -> int:
        return declared.subjects_per_silo
