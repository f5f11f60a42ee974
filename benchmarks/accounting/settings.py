"""What is measured: the table of six settings, the calibrations, and random settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from userdp.accounting.mechanisms import Mixture


@dataclass(frozen=True)
class Setting:
    """One composition and a δ."""

    steps: int
    sampling_probability: float
    noise_multiplier: float
    group_size: int
    delta: float

    @property
    def key(self) -> str:
        return (
            f"T={self.steps} p={self.sampling_probability!r} sigma={self.noise_multiplier!r}"
            f" G={self.group_size} delta={self.delta!r}"
        )

    def mechanism(self) -> Mixture:
        """The steps; imported here, so that a worker of another library does not pay for ours."""
        from userdp.accounting.mechanisms import binomial_steps

        return binomial_steps(
            sampling_probability=self.sampling_probability,
            group_size=self.group_size,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps,
        )


TABLE = [
    Setting(2000, 0.01, 1.0, 1, 1e-6),
    Setting(2000, 0.01, 1.0, 8, 1e-6),
    Setting(2000, 0.01, 1.0, 16, 1e-6),
    Setting(2000, 0.01, 0.5, 8, 1e-6),
    Setting(2000, 0.01, 2.0, 32, 1e-6),
    Setting(10000, 1e-4, 1.0, 128, 1e-6),
]
CALIBRATION_SAMPLE = [TABLE[0], TABLE[4], TABLE[5]]
# Target ε of a calibration: a little below the ε of the setting's own σ, so that σ moves.
CALIBRATION_EPSILON = {TABLE[0].key: 2.5, TABLE[4].key: 50.0, TABLE[5].key: 8.0}


def random_settings(count: int, seed: int) -> list[Setting]:
    """Log-uniform settings over wide ranges, rounded to 6 digits; same for a seed."""
    rng = np.random.default_rng(seed)

    def draw(low: float, high: float) -> float:
        return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.6g}")

    return [
        Setting(
            steps=round(draw(1, 1e6)),
            sampling_probability=draw(1e-6, 1.0),
            noise_multiplier=draw(0.3, 100.0),
            group_size=round(draw(1, 512)),
            delta=draw(1e-12, 1e-3),
        )
        for _ in range(count)
    ]


def proof_settings(count: int, seed: int) -> list[Setting]:
    """Settings for the proof: of every five, three over wide ranges and two in a corner.

    The corners take turns: little noise, large groups, tiny δ. The same for a seed.
    """
    rng = np.random.default_rng(seed)

    def draw(low: float, high: float) -> float:
        return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.6g}")

    settings = []
    for i in range(count):
        corner = (i // 5 * 2 + i % 5 - 3) % 3 if i % 5 >= 3 else None
        settings.append(
            Setting(
                steps=round(draw(1, 1e6)),
                sampling_probability=draw(1e-6, 1.0),
                noise_multiplier=draw(0.15, 0.4) if corner == 0 else draw(0.3, 100.0),
                group_size=round(draw(64, 3e4) if corner == 1 else draw(1, 512)),
                delta=draw(1e-100, 1e-12) if corner == 2 else draw(1e-12, 1e-3),
            )
        )
    return settings
