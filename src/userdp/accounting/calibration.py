"""The least noise for a budget."""

from __future__ import annotations

import math
from typing import TypeVar

from userdp.accounting.mechanisms import NoisySteps
from userdp.accounting.roots import least
from userdp.errors import UseError
from userdp.vocabulary import delta_up, epsilon_up, require_delta, require_positive

_LEAST_NOISE, _LARGEST_NOISE = 1e-3, 1e6

SomeSteps = TypeVar("SomeSteps", bound=NoisySteps)


def calibrate(
    mechanism: SomeSteps,
    *,
    target_epsilon: float,
    target_delta: float,
    tolerance: float = 1e-6,
) -> SomeSteps:
    """The mechanism with the least noise that stays within (``target_epsilon``, ``target_delta``).

    Guarantee: the returned mechanism's upper bound on ε is at most ``target_epsilon``; its noise
    multiplier exceeds the least such one by a factor of about ``1 + tolerance`` at most.

    Args:
        mechanism: anything with the wanted sampling and steps; the search starts at its noise.
        target_epsilon: > 0.
        target_delta: in (0, 1).
        tolerance: relative width at which the search stops; in (0, 0.1].

    Raises:
        UseError: no noise multiplier up to 1e6 meets the budget.

    >>> from userdp.accounting.mechanisms import binomial_steps
    >>> steps = binomial_steps(sampling_probability=0.01, noise_multiplier=2.0, steps=2000)
    >>> noisier = calibrate(steps, target_epsilon=2.9552459, target_delta=1e-6)
    >>> print(f"{noisier.noise_multiplier:.5f}")
    1.00000
    """
    require_positive("target_epsilon", target_epsilon)
    require_positive("tolerance", tolerance, at_most=0.1)
    require_delta(target_delta)

    def excess(noise: float) -> float:
        """log(δ / target): nearly straight in the noise, so that few evaluations are needed."""
        delta = mechanism.with_noise_multiplier(noise).delta(target_epsilon).upper
        log_ratio = math.log(max(delta, 1e-300) / target_delta)
        # The sign is that of δ - target, whatever the logarithm's rounding makes of it.
        return max(log_ratio, 5e-324) if delta > target_delta else min(log_ratio, 0.0)

    noise = least(
        excess,
        start=mechanism.noise_multiplier,
        most=_LARGEST_NOISE,
        smallest=_LEAST_NOISE,
        relative=tolerance,
    )
    if noise is None:
        raise UseError(
            f"no noise multiplier up to {_LARGEST_NOISE:g} reaches epsilon = "
            f"{epsilon_up(target_epsilon)} at delta = {delta_up(target_delta)}, so no plan can "
            "promise it",
            hint="raise the target epsilon, or lower the steps or the sampling probability",
        )
    # δ within budget at ε does not quite give the ε bracket's upper end: it has a width of its own.
    while not mechanism.with_noise_multiplier(noise).epsilon(target_delta).upper <= target_epsilon:
        noise *= 1 + tolerance
    return mechanism.with_noise_multiplier(noise)
