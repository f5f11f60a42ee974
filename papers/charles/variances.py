"""var(ζ) of ELS and ULS under one compute budget (Charles et al. 2024, Equations 5-7).

The constants of its figures are the paper's (Appendix B).
"""

from __future__ import annotations

import math
from functools import lru_cache

from papers.table import Row
from userdp.accounting.calibration import calibrate
from userdp.accounting.mechanisms import binomial_steps

EXAMPLES, USERS, STEPS, DELTA = 32, 1024, 1000, 1e-6
"""K, which is also G_ELS; N; T; δ."""
_CLIP = 10.0  # L_ELS
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


def series(name: str, epsilon: float, size: int, *, group: int = 1, diverse: float = 1.0) -> Row:
    """One series at one ε: its noise multiplier and var(ζ) = (σ L / size)², Equations 5 and 6.

    Args:
        name: of the series.
        epsilon: at `DELTA`.
        size: examples (ELS) or users (ULS) expected in a step.
        group: G of ELS; 1 of ULS.
        diverse: L_ELS / L; √G_ULS where a user's gradients are taken as orthogonal (Appendix B).
    """
    sigma = least_noise(size / (group * USERS), STEPS, epsilon, DELTA, group)
    variance = (sigma * _CLIP / diverse / size) ** 2
    return {"series": name, "noise_multiplier": sigma, "variance": variance}


def compare(epsilon: float, budget: int, cohort: int) -> list[Row]:
    """Noise and variance of each series of `SERIES`, for B = ``budget`` and M = ``cohort``."""
    return [
        series(SERIES[0], epsilon, budget, group=EXAMPLES),
        series(SERIES[1], epsilon, cohort),
        series(SERIES[2], epsilon, cohort, diverse=math.sqrt(budget / cohort)),
    ]
