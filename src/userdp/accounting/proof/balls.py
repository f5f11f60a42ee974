"""Access to Arb, and the way from balls back to floats.

Every number of the proof is a ball of the library Arb (through ``python-flint``): a midpoint and a
radius that contain the exact value, whatever was rounded. Floats enter as the exact dyadic numbers
that they are. Comparisons of balls are true only when they hold for every pair of their points.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from userdp.extras import library

Ball = Any  # flint.arb or flint.acb: the library ships no types


def flint_library() -> ModuleType:
    """The module ``flint``.

    Raises:
        UseError: python-flint is not installed.
    """
    module: ModuleType = library("flint", extra="proof", what="a proof (ball arithmetic by Arb)")
    return module


def float_above(ball: Ball) -> float:
    """The least convenient float that is at least every point of ``ball``; inf if there is none."""
    arb = flint_library().arb
    if not ball.is_finite():
        return math.inf
    value = float(ball.upper())
    while not arb(value) >= ball:
        value = math.nextafter(value, math.inf)
    return value


def float_below(ball: Ball) -> float:
    """A float that is at most every point of ``ball``; -inf if there is none."""
    return -float_above(-ball)


def log_float(ball: Ball) -> float:
    """log of the upper end of a non-negative ball as a float, for planning only; -inf at 0."""
    upper = ball.upper()
    return float(upper.log()) if upper > 0 else -math.inf
