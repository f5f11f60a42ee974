"""Where a condition begins to hold: the one bisection, which ends on the side where it was seen to.

Searches here end in numbers that are claimed: an ε, a noise multiplier, a threshold. So the answer
is always a number at which the condition was *evaluated and held*, whatever rounding did on the
way, never one between two that were; if the condition is not monotone the answer may not be the
least, but it still holds.
"""

from __future__ import annotations

from collections.abc import Callable


def bisect(
    holds: Callable[[float], bool],
    low: float,
    high: float,
    *,
    relative: float = 0.0,
    absolute: float = 0.0,
) -> float:
    """A number in (low, high] at which ``holds``, next to one at which it does not.

    Guarantee: ``holds`` was true of the result, or the result is ``high``, of which the caller
    knows. It may lie above ``low`` or below: ``bisect(holds, 1.0, 0.0)`` searches downwards.

    Args:
        holds: false towards ``low``, true towards ``high``.
        low: where it does not hold, or was not asked.
        high: where it holds.
        relative: the search ends when both are so close, in parts of ``high``.
        absolute: or so close as they are. With neither it ends at neighbouring doubles.
    """
    while abs(high - low) > max(relative * abs(high), absolute):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def least(
    holds: Callable[[float], bool],
    *,
    start: float,
    most: float,
    smallest: float = 0.0,
    relative: float,
) -> float | None:
    """About the least positive number at which ``holds``, on its right side.

    Args:
        holds: false below some number, true above it.
        start: where to look first; > 0.
        most: the largest number tried.
        smallest: no number much below it is tried.
        relative: how close to the least number, in parts of it.

    Returns:
        A number at which ``holds`` was true; None where it is not true of ``most``.
    """
    high = min(start, most)
    if holds(high):
        low = high / 2
        while low > smallest and holds(low):
            low, high = low / 2, low
    else:
        while True:
            if high >= most:
                return None
            low, high = high, min(2 * high, most)
            if holds(high):
                break
    return bisect(holds, low, high, relative=relative)
