"""The least noise for a budget."""

from __future__ import annotations

from typing import TypeVar

from userdp.accounting.contour import calibrate_noise
from userdp.accounting.mechanisms import Mixture, NoisySteps
from userdp.accounting.roots import least
from userdp.errors import UseError
from userdp.vocabulary import delta_up, require_delta, require_positive

_LARGEST_NOISE = 1e6

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
    """
    require_positive("target_epsilon", target_epsilon)
    require_delta(target_delta)

    def within(sigma: float) -> bool:
        found = mechanism.with_noise_multiplier(sigma)
        return found.delta(target_epsilon).upper <= target_delta

    noise: float | None
    if not within(_LARGEST_NOISE):
        raise UseError(
            f"no noise multiplier up to {_LARGEST_NOISE:g} reaches epsilon = {target_epsilon:g} "
            f"at delta = {delta_up(target_delta)}, so no plan can promise it",
            hint="raise the target epsilon, or lower the steps or the sampling probability",
        )
    if isinstance(mechanism, Mixture):  # its δ is smooth in the noise: few evaluations do
        mixture = mechanism
        noise = calibrate_noise(
            lambda sigma: mixture.with_noise_multiplier(sigma).phases(),
            epsilon=target_epsilon,
            delta=target_delta,
            start=mechanism.noise_multiplier,
            relative_tolerance=tolerance,
            most=_LARGEST_NOISE,
        )
    else:
        noise = least(
            within,
            start=mechanism.noise_multiplier,
            most=_LARGEST_NOISE,
            smallest=1e-3,
            relative=tolerance,
        )
        assert noise is not None  # the largest noise is enough
    # δ within budget at ε does not quite give the ε bracket's upper end: it has a width of its own.
    while not mechanism.with_noise_multiplier(noise).epsilon(target_delta).upper <= target_epsilon:
        noise *= 1 + tolerance
    return mechanism.with_noise_multiplier(noise)
