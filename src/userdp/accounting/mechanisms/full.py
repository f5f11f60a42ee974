"""Everybody takes part in every step: the Gaussian mechanism, in closed form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from userdp.accounting.contour import Phase, gaussian_phase
from userdp.accounting.mechanisms.base import MixtureMechanism
from userdp.guarantees import Adjacency, require_count, require_positive


@dataclass(frozen=True, kw_only=True, slots=True)
class FullParticipation(MixtureMechanism):
    """T releases of a sum in which every unit takes part, with Gaussian noise.

    Guarantee: μ-Gaussian DP with μ = shift·√T / σ:
    δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ) (Balle & Wang 2018, Theorem 8). Also the price of a
    single Gaussian query (``steps=1``).

    Args:
        shift: how far one unit moves the sum, in clip norms: 1 where it is added, removed or
            zeroed out, 2 where it is replaced; > 0.
        noise_multiplier: σ, the noise's standard deviation divided by the clip norm; > 0.
        steps: T; at least 1.
        measured_under: the adjacency that ``shift`` belongs to.

    Raises:
        UseError: a parameter is out of its range (NaN included).
    """

    shift: float = 1.0
    noise_multiplier: float
    steps: int
    measured_under: Adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        require_positive("shift", self.shift)
        require_positive("noise_multiplier", self.noise_multiplier)
        require_count("steps", self.steps)

    @property
    def adjacency(self) -> Adjacency:
        return self.measured_under

    def with_noise_multiplier(self, noise_multiplier: float) -> Self:
        """The same mechanism with other noise."""
        return replace(self, noise_multiplier=noise_multiplier)

    def phases(self) -> tuple[Phase, ...]:
        return (
            gaussian_phase(
                shift=self.shift, noise_multiplier=self.noise_multiplier, count=self.steps
            ),
        )
