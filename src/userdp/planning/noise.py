"""σ for many settings of one budget: each calibrated once, from its nearest neighbour on."""

from __future__ import annotations

import math

from userdp.accounting import binomial_steps, calibrate
from userdp.accounting.implemented import ideal_delta_for
from userdp.errors import UseError
from userdp.vocabulary import require_delta, require_positive

TOLERANCE = 1e-5
"""σ exceeds the least possible by this factor, less one, at most."""


class OutOfReach(UseError):
    """No noise keeps a setting within the budget."""


class NoiseTable:
    """The least noise multipliers within one (ε, δ), remembered.

    Guarantee: every σ returned keeps its steps, as they run, within the budget, and exceeds the
    least such σ by a factor of about 1 + `TOLERANCE` at most.

    σ does not fall as the sampling probability grows, all else fixed: the draw with q is a mixture
    of the draw with q' > q and of none, and the hockey-stick divergence is jointly convex. The
    searches in `userdp.planning.uls` leave cells out by that, and by nothing unproven.

    Args:
        target_epsilon: of training only, > 0.
        target_delta: in (0, 1).
        runs: of a declared series that the budget is for, all of the setting that is asked about.

    Attributes:
        calibrations: how many were computed.
    """

    def __init__(self, *, target_epsilon: float, target_delta: float, runs: int = 1) -> None:
        self.runs = runs
        self.target_epsilon = require_positive("target_epsilon", target_epsilon)
        self.target_delta = require_delta(target_delta)
        self.calibrations = 0
        self._multipliers: dict[tuple[int, int, float], float] = {}

    def users(self, sampling_probability: float, steps: int) -> float:
        """σ_ULS: T steps that draw each user with probability q (Charles et al. 2024, Eq. 3)."""
        return self._get(1, steps, sampling_probability)

    def examples(self, sampling_probability: float, group_size: int, steps: int) -> float:
        """σ_ELS: T steps that draw each of a user's G examples with probability p (Eq. 2)."""
        return self._get(group_size, steps, sampling_probability)

    def ideal_delta(self, steps: int) -> float:
        """The δ that steps with Gaussian noise must reach for the budget's to hold as they run."""
        return ideal_delta_for(self.target_epsilon, self.target_delta, steps=steps * self.runs)

    def _get(self, group_size: int, steps: int, sampling_probability: float) -> float:
        key = group_size, steps, sampling_probability
        if key not in self._multipliers:
            start = self._nearest(key)
            mechanism = binomial_steps(
                sampling_probability=sampling_probability,
                group_size=group_size,
                noise_multiplier=start,
                steps=steps * self.runs,
            )
            try:
                calibrated = calibrate(
                    mechanism,
                    target_epsilon=self.target_epsilon,
                    target_delta=self.ideal_delta(steps),
                    tolerance=TOLERANCE,
                )
            except UseError as error:
                raise OutOfReach(error.message, hint=error.hint) from error
            self.calibrations += 1
            self._multipliers[key] = calibrated.noise_multiplier
        return self._multipliers[key]

    def _nearest(self, key: tuple[int, int, float]) -> float:
        """A σ to start from: that of the setting with the nearest G p √T."""
        if not self._multipliers:
            return 1.0

        def place(other: tuple[int, int, float]) -> float:
            group_size, steps, probability = other
            return math.log(group_size * probability * math.sqrt(steps))

        here = place(key)
        return self._multipliers[min(self._multipliers, key=lambda other: abs(place(other) - here))]
