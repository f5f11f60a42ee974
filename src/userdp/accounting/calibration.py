"""The least noise for a budget."""

from __future__ import annotations

from userdp.accounting.mechanisms import SampledMechanism
from userdp.errors import UseError
from userdp.guarantees import require_delta, require_positive

_LARGEST_NOISE = 1e6


def calibrate(
    mechanism: SampledMechanism,
    *,
    target_epsilon: float,
    target_delta: float,
    tolerance: float = 1e-3,
) -> SampledMechanism:
    """The mechanism with the least noise that stays within (``target_epsilon``, ``target_delta``).

    Guarantee: the returned mechanism's upper bound on ε is at most ``target_epsilon``; its noise
    multiplier exceeds the least such one by a factor of at most ``1 + tolerance``.

    Args:
        mechanism: anything with the wanted sampling and steps; its own noise is only a start.
        target_epsilon: > 0.
        target_delta: in (0, 1).
        tolerance: relative width at which the search stops; > 0.

    Raises:
        UseError: no noise multiplier up to 1e6 meets the budget.
    """
    require_positive("target_epsilon", target_epsilon)
    require_delta(target_delta)
    require_positive("tolerance", tolerance)

    def within(noise_multiplier: float) -> bool:
        candidate = mechanism.with_noise_multiplier(noise_multiplier)
        return candidate.epsilon(target_delta).upper <= target_epsilon

    high = mechanism.noise_multiplier
    while not within(high):
        high *= 2
        if high > _LARGEST_NOISE:
            raise UseError(
                f"no noise multiplier up to {_LARGEST_NOISE:g} reaches epsilon = {target_epsilon:g}"
                f" at delta = {target_delta:g}, so no plan can promise it",
                hint="raise the target epsilon, or lower the steps or the sampling probability",
            )
    low = high / 2
    while within(low):
        high, low = low, low / 2
        if low < 1e-6:
            return mechanism.with_noise_multiplier(high)
    while high > low * (1 + tolerance):
        middle = (low * high) ** 0.5
        if within(middle):
            high = middle
        else:
            low = middle
    return mechanism.with_noise_multiplier(high)
