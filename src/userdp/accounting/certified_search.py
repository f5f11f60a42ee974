"""Where a condition begins to hold: every search whose result is claimed goes through this module.

The results are claimed numbers: an ε, a noise multiplier, a threshold. So each function returns a
number at which the condition was *evaluated and held*, whatever rounding did on the way, never a
number between two evaluations. Where the condition is not monotone the result may not be the least
such number, but the condition holds at it.

Nothing here knows what is searched. The proof by ball arithmetic (`userdp.accounting.proof`) may
therefore use it beside the accountant that it checks: it searches only for where to look, and
what it finds there is enclosed by balls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

_GOLDEN = (math.sqrt(5) - 1) / 2


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


def narrow(
    excess: Callable[[float], float | None],
    low: float,
    high: float,
    *,
    relative: float = 0.0,
    absolute: float = 0.0,
) -> tuple[float, float]:
    """Two neighbouring numbers between which a falling ``excess`` passes 0, in few evaluations.

    Guarantee: ``excess`` was positive at the first one and at most 0 at the second one, or they are
    ``low`` and ``high`` themselves, of which the caller knows.

    Args:
        excess: positive towards ``low``, at most 0 towards ``high``; the straighter, the fewer
            evaluations. A boolean ("not yet") makes this a bisection. None where the sign cannot be
            decided: the search ends there.
        low: the lower end.
        high: the upper end.
        relative: the search ends when both are so close, in parts of the second one.
        absolute: or so close as they are.
    """
    excess = cache(excess)
    before, last, slow = low, high, 0
    while high - low > (tolerance := max(relative * abs(high), absolute)):
        width = high - low
        first, second = excess(before), excess(last)
        if first is None or second is None:
            break
        root = math.nan
        if first != second:
            root = last - second * (last - before) / (second - first)
        if not low < root < high or slow == 3:  # the secant leads nowhere: halve the interval
            root, slow = 0.5 * (low + high), 0
        else:
            # Look a little beyond the root, on the side of the end that is still far from it. So
            # the last two evaluations fall on both sides of it and end the search.
            root += 0.05 * tolerance if high - root > tolerance else -0.5 * tolerance
        place = min(max(root, low + 0.3 * tolerance), high - 0.3 * tolerance)
        value = excess(place)
        if place in (low, high) or value is None:
            break
        low, high = (place, high) if value > 0 else (low, place)
        slow = slow + 1 if high - low > 0.5 * width else 0
        before, last = last, place
    return low, high


def least(
    excess: Callable[[float], float],
    *,
    start: float,
    most: float,
    smallest: float,
    relative: float,
) -> float | None:
    """About the least positive number at which a falling ``excess`` is at most 0.

    Args:
        excess: positive below some number, at most 0 above it, or on an interval of which the
            upper end is more than twice the lower one; see `narrow`.
        start: where to look first; > 0. A neighbouring answer saves evaluations.
        most: the largest number tried.
        smallest: the smallest number tried; it is the result if ``excess`` is at most 0 there.
        relative: how close to the least number, in parts of it.

    Returns:
        A number at which ``excess`` was at most 0; None where it is positive at ``most``.
    """
    excess = cache(excess)
    low = high = min(max(start, smallest), most)
    while excess(high) > 0:
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while excess(low) <= 0:
        if low <= smallest:
            return low
        low, high = max(low / 2, smallest), low
    return narrow(excess, low, high, relative=relative)[1]


def outwards(
    holds: Callable[[float], bool], start: float, move: float, *, growth: float = 2.0
) -> float | None:
    """The first of start + move, start + growth·move, … at which ``holds``; None after 60."""
    for _ in range(60):
        if holds(start + move):
            return start + move
        move *= growth
    return None


def valley(height: Callable[[float], float], low: float, high: float, *, turns: int) -> float:
    """About where ``height``, which has a single valley, is least: golden sections.

    Each turn is one evaluation. The result was evaluated, so that a height that is a bound at every
    place is one there, whatever the shape of the function.
    """
    height = cache(height)
    left, right = high - (high - low) * _GOLDEN, low + (high - low) * _GOLDEN
    for _ in range(turns):
        if height(left) <= height(right):
            high, right, left = right, left, right - (right - low) * _GOLDEN
        else:
            low, left, right = left, right, left + (high - left) * _GOLDEN
    return min((left, right), key=height)
