"""var(ζ) of ELS and ULS under one compute budget (Charles et al. 2024, Equations 5-7)."""

from __future__ import annotations

import math
from functools import lru_cache

from userdp.accounting.calibration import calibrate
from userdp.accounting.mechanisms import binomial_steps


@lru_cache(maxsize=4096)
def examples_noise(
    group_size: int, sampling_probability: float, steps: int, epsilon: float, delta: float
) -> float:
    """σ_ELS: the least noise multiplier of ELS within (ε, δ), to a factor of 1.0001."""
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


@lru_cache(maxsize=4096)
def users_noise(sampling_probability: float, steps: int, epsilon: float, delta: float) -> float:
    """σ_ULS: the least noise multiplier of ULS within (ε, δ), to a factor of 1.0001."""
    return calibrate(
        binomial_steps(
            sampling_probability=sampling_probability, noise_multiplier=1.0, steps=steps
        ),
        target_epsilon=epsilon,
        target_delta=delta,
        tolerance=1e-4,
    ).noise_multiplier


def examples_variance(noise_multiplier: float, clip: float, batch: float) -> float:
    """var(ζ_ELS) = (σ_ELS L_ELS / B)², Equation 5."""
    return (noise_multiplier * clip / batch) ** 2


def users_variance(noise_multiplier: float, clip: float, cohort: float) -> float:
    """var(ζ_ULS) = (σ_ULS L_ULS / M)², Equation 6."""
    return (noise_multiplier * clip / cohort) ** 2


def diverse_clip(clip: float, group_size: float) -> float:
    """L_ULS = L_ELS / √G_ULS: a user's gradients orthogonal (Appendix B)."""
    return clip / math.sqrt(group_size)
