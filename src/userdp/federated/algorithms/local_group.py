"""LocalGroupDP: a local step adds clipped item gradients, with noise for all of a subject's."""

from __future__ import annotations

from typing import ClassVar

from userdp.federated.algorithms.base import Algorithm
from userdp.sampling import PoissonExamples, Sampling


class LocalGroup(Algorithm):
    """Each item is a unit; a subject is in a step with a binomial number of them.

    Source: Marathe et al. 2023, Algorithm 1; docs/federated.md, Proposition 1.
    """

    name: ClassVar[str] = "local-group-dp"
    sampling: ClassVar[type[Sampling]] = PoissonExamples
