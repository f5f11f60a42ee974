r"""The least noise for a budget: solve delta_upper(sigma; epsilon) = delta in few evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from userdp.accounting.contour.certify import delta_bracket
from userdp.accounting.contour.phases import Phase
from userdp.vocabulary import require_delta, require_epsilon, require_positive


def calibrate_noise(
    phases_of: Callable[[float], Sequence[Phase]],
    *,
    epsilon: float,
    delta: float,
    start: float = 1.0,
    relative_tolerance: float = 1e-6,
    least: float = 1e-3,
    most: float = 1e6,
) -> float:
    """A noise multiplier whose certified delta at ``epsilon`` is at most ``delta``.

    Guarantee: ``delta_bracket(phases_of(result), epsilon).upper <= delta``: the side within
    budget. Where delta falls as the noise grows, the result exceeds the least possible one by at
    most ``relative_tolerance`` (plus what the bracket's width is worth).

    Args:
        phases_of: the composition as a function of the noise multiplier.
        epsilon: target, finite, >= 0.
        delta: target, in (0, 1).
        start: where to look first, > 0 (a neighbouring answer saves time).
        relative_tolerance: in (0, 0.1].
        least: lower end of the range searched.
        most: upper end of the range searched.

    Raises:
        ValueError: for parameters out of range, or when ``most`` is not enough.

    >>> from userdp.accounting.contour import binomial_phase, calibrate_noise
    >>> found = calibrate_noise(
    ...     lambda sigma: [
    ...         binomial_phase(
    ...             group_size=1, sampling_probability=0.01, noise_multiplier=sigma, count=2000
    ...         )
    ...     ],
    ...     epsilon=2.9552459,
    ...     delta=1e-6,
    ... )
    >>> print(f"{found:.5f}")
    1.00000
    """
    require_epsilon(epsilon)
    require_delta(delta)
    require_positive("start", start)
    require_positive("relative_tolerance", relative_tolerance, at_most=0.1)
    goal = math.log(delta)

    def excess(log_sigma: float) -> float:
        found = delta_bracket(phases_of(math.exp(log_sigma)), epsilon).upper
        if found <= delta:  # never positive by a rounding of the logarithm
            return min(math.log(max(found, 1e-300)) - goal, 0.0)
        return math.log(found) - goal

    t = min(max(math.log(start), math.log(least)), math.log(most))
    value, jump = excess(t), 0.3
    low = high = t
    f_low = f_high = value
    while f_low <= 0:  # too much noise: go down
        high, f_high = low, f_low
        low -= jump
        jump *= 1.7
        if low < math.log(least):
            f_low = excess(math.log(least))
            if f_low <= 0:
                return least
            low = math.log(least)
            break
        f_low = excess(low)
    while f_high > 0:
        low, f_low = high, f_high
        high += jump
        jump *= 1.7
        if high > math.log(most):
            raise ValueError(
                f"no noise multiplier up to {most:g} meets epsilon={epsilon!r}, delta={delta!r}"
            )
        f_high = excess(high)
    while high - low > relative_tolerance:
        span = f_low - f_high
        share = f_low / span if 0 < span < math.inf else 0.5
        width = high - low
        # a little beyond the secant's root, so that both ends close in
        guess = low + width * min(max(share, 1e-3), 1 - 1e-3)
        inside = min(max(guess + 0.3 * relative_tolerance, low + 0.02 * relative_tolerance), high)
        if f_low > 50 or f_high < -50:
            inside = low + 0.5 * width
        f_mid = excess(inside)
        if f_mid <= 0:
            high, f_high = inside, f_mid
            near = high - 0.9 * relative_tolerance
            if f_high > -50 and near > low and high - low > 2 * relative_tolerance:
                f_near = excess(near)
                if f_near > 0:
                    low, f_low = near, f_near
                else:
                    high, f_high = near, f_near
        else:
            low, f_low = inside, f_mid
        if high - low > 0.7 * width:
            mid = 0.5 * (low + high)
            f_mid = excess(mid)
            low, f_low, high, f_high = (
                (mid, f_mid, high, f_high) if f_mid > 0 else (low, f_low, mid, f_mid)
            )
    return math.exp(high)
