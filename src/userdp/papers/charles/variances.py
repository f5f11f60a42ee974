"""var(ζ) of ELS and ULS under one compute budget (Charles et al. 2024, Equations 5-7)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from userdp.accounting.calibration import calibrate
from userdp.accounting.mechanisms import binomial_steps
from userdp.papers.table import Row

SERIES = ("ELS", "ULS, L_ULS = L_ELS", "ULS, L_ULS = L_ELS/√G_ULS")


@lru_cache(maxsize=4096)
def least_noise(
    sampling_probability: float, steps: int, epsilon: float, delta: float, group_size: int = 1
) -> float:
    """The least noise multiplier within (ε, δ), to a factor of 1.0001: σ_ELS, or σ_ULS at G = 1."""
    return calibrate(
        binomial_steps(
            sampling_probability=sampling_probability,
            group_size=group_size,
            noise_multiplier=1.0,
            steps=steps,
        ),
        target_epsilon=epsilon,
        target_delta=delta,
        tolerance=1e-4,
    ).noise_multiplier


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What ELS and ULS are compared at.

    Args:
        examples_per_user: K, which is also G_ELS.
        users: N.
        steps: T.
        clip: L_ELS.
        delta: δ.
    """

    examples_per_user: int
    users: int
    steps: int
    clip: float
    delta: float

    def compare(self, epsilon: float, budget: int, cohort: int) -> list[Row]:
        """Noise and variance of each series of `SERIES`, for B = ``budget`` and M = ``cohort``."""
        p, q = budget / (self.examples_per_user * self.users), cohort / self.users
        examples = least_noise(p, self.steps, epsilon, self.delta, self.examples_per_user)
        users = least_noise(q, self.steps, epsilon, self.delta)
        diverse = diverse_clip(self.clip, budget / cohort)
        variances = (
            (examples, noise_variance(examples, self.clip, budget)),
            (users, noise_variance(users, self.clip, cohort)),
            (users, noise_variance(users, diverse, cohort)),
        )
        return [
            {"series": series, "noise_multiplier": sigma, "variance": variance}
            for series, (sigma, variance) in zip(SERIES, variances, strict=True)
        ]


def noise_variance(noise_multiplier: float, clip: float, size: float) -> float:
    """var(ζ) = (σ L / size)²: Equation 5 with B as the size, Equation 6 with M."""
    return (noise_multiplier * clip / size) ** 2


def diverse_clip(clip: float, group_size: float) -> float:
    """L_ULS = L_ELS / √G_ULS: a user's gradients orthogonal (Appendix B)."""
    return clip / math.sqrt(group_size)
