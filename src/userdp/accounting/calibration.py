"""The least noise for a budget."""

from __future__ import annotations

from typing import TypeVar

from userdp.accounting import group_privacy
from userdp.accounting.contour import calibrate_noise
from userdp.accounting.mechanisms import FixedGraphExamples, SampledMechanism
from userdp.errors import UseError
from userdp.guarantees import delta_up, require_delta, require_positive

_LARGEST_NOISE = 1e6

SomeMechanism = TypeVar("SomeMechanism", bound=SampledMechanism)


def calibrate(
    mechanism: SomeMechanism,
    *,
    target_epsilon: float,
    target_delta: float,
    tolerance: float = 1e-6,
) -> SomeMechanism:
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
    least = mechanism.with_noise_multiplier(_LARGEST_NOISE)
    if not least.delta(target_epsilon).upper <= target_delta:
        raise UseError(
            f"no noise multiplier up to {_LARGEST_NOISE:g} reaches epsilon = {target_epsilon:g} "
            f"at delta = {delta_up(target_delta)}, so no plan can promise it",
            hint="raise the target epsilon, or lower the steps or the sampling probability",
        )
    noise = calibrate_noise(
        lambda sigma: mechanism.with_noise_multiplier(sigma).phases(),
        epsilon=target_epsilon,
        delta=target_delta,
        start=mechanism.noise_multiplier,
        relative_tolerance=tolerance,
        most=_LARGEST_NOISE,
    )
    found = mechanism.with_noise_multiplier(noise)
    # δ within budget at ε does not quite give the ε bracket's upper end: it has a width of its own.
    while not found.epsilon(target_delta).upper <= target_epsilon:
        noise *= 1 + tolerance
        found = mechanism.with_noise_multiplier(noise)
    return found


def calibrate_fixed_graph(
    mechanism: FixedGraphExamples, *, target_epsilon: float, target_delta: float
) -> FixedGraphExamples:
    """The mechanism with the least noise whose bound stays within the budget (to about 1e-6).

    Guarantee: the returned mechanism's upper bound on ε is at most ``target_epsilon``.

    Args:
        mechanism: its noise does not matter.
        target_epsilon: > 0.
        target_delta: in (0, 1).

    Raises:
        UseError: no noise multiplier up to 1e6 meets the budget.
    """
    # Half of the way in each of two steps: the target of the zero-out mechanism.
    half = group_privacy.example_target(target_epsilon, target_delta, 2)
    if half.delta == 0:
        raise UseError(
            f"delta = {delta_up(target_delta)} is too small for epsilon = {target_epsilon:g} under "
            "fixed-graph adjacency: half of it is below the smallest number",
            hint="lower the target epsilon",
        )
    noise = calibrate(
        mechanism.zeroed, target_epsilon=half.epsilon, target_delta=half.delta
    ).noise_multiplier
    low, high = 0.0, noise  # everybody in every step, in closed form, may need less
    if mechanism.with_noise_multiplier(high).in_full.delta(target_epsilon).upper <= target_delta:
        while high - low > 1e-7 * high:
            middle = 0.5 * (low + high)
            found = mechanism.with_noise_multiplier(middle).in_full
            low, high = (
                (low, middle)
                if found.delta(target_epsilon).upper <= target_delta
                else (middle, high)
            )
        noise = high
    while not mechanism.with_noise_multiplier(noise).epsilon(target_delta).upper <= target_epsilon:
        noise *= 1 + 1e-6  # ε has a rounding of its own
    return mechanism.with_noise_multiplier(noise)
