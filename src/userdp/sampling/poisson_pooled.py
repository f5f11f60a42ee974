"""Poisson sampling of examples, all of which together make one unit (UserLDP)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from userdp.sampling.base import Words
from userdp.sampling.poisson_examples import OPTIONS
from userdp.sampling.poisson_subjects import PoissonSubjects

if TYPE_CHECKING:
    from userdp.accounting.mechanisms import Mixture
    from userdp.sampling.coins import Indices


@dataclass(frozen=True, kw_only=True)
class PoissonPooled(PoissonSubjects):
    """Each example joins each step with probability p; the one unit is all that was drawn.

    Guarantee: T steps are dominated, per subject of at most G examples under add-or-remove
    adjacency, by N(2 Bern(q), σ²)^T against N(0, σ²)^T with q = 1 - (1 - p)^G. If something of the
    subject is drawn, the mean gradient may change in any way; it is clipped to C in both worlds,
    so it moves by at most 2C (docs/federated.md, Proposition 3).
    """

    kind: ClassVar[str] = "pooled-examples"
    algorithm: ClassVar[str] = "UserLDP"
    words: ClassVar[Words] = Words(
        title="Poisson sampling of pooled examples",
        draw="each example joins each step independently with probability p, and all that were "
        "drawn are clipped as one",
        options=OPTIONS,
        symbols={"sampling_probability": "p"},
    )

    def expected_units(self, population: int) -> float:
        return 1.0  # the mean over what was drawn is formed before the clip

    def unit_offsets(self, users: Indices) -> Indices:
        import numpy as np

        return np.array([0, len(users)] if len(users) else [0], dtype=np.int64)

    def _mixture(self, noise_multiplier: float, steps: int) -> Mixture:
        moved_by_one = super()._mixture(noise_multiplier, steps)
        return replace(moved_by_one, scale=2.0)
