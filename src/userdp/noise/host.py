"""Gaussian numbers on a CPU, by NumPy: a ziggurat whose far draws are drawn again.

No torch. Where a draw ends, and what that costs, says `userdp.noise.gaussian`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

WORDS = 3
r"""Words w of 63 independent bits in a uniform U = (w₁ + (w₂ + (w₃ + ½) 2^-63) 2^-63) 2^-63.

That is the middle of one of 2^189 equal intervals of (0, 1), rounded to float64. So U has all its
53 bits however small it is, and so has its logarithm. A device draws w₂ and w₃ where w₁ < 2^53
alone (one number in 1,024), and takes ½ for what they say elsewhere: beyond the 53 bits that w₁
fills there. In both samplers P(|X| > end) <= e^{-end²/2} <= 2^-190 (`userdp.noise.gaussian`)."""

SCALE = 2.0**-63  # a word as a number in [0, 1)
_FAR = 6.0
"""Where a draw on the CPU is redrawn: far inside the ziggurat's own tail, where its 53-bit uniforms
still have 2^40 values to a unit, and so rare (2e-9) that it costs no time."""


def draw_on_host(generator: np.random.Generator, out: NDArray[np.float64]) -> None:
    """Fill ``out`` with standard Gaussian numbers, of at most 17.31 in absolute value.

    By NumPy's ziggurat. Its own tail, beyond 3.654, is 3.654 + x with x = -log(1-U)/3.654 for a U
    of 53 bits, kept if -2 log(1-V) > x². So V's bits bound x by √(2·53·log 2) = 8.572 and the value
    by 12.226, which an exact Gaussian passes with probability 2.3e-34; and near that end only few
    values occur. A draw beyond 6 is therefore drawn again, by Marsaglia's tail:
    R = √(36 - 2 log U), which has the density of r e^{-r²/2} beyond 6, is kept with probability
    6/R, which leaves that of e^{-r²/2}. With U >= 2^-190 it ends at 17.30.
    """
    generator.standard_normal(out=out)
    if out.size and max(out.max(), -out.min()) > _FAR:
        redraw_far(generator, out, beyond=_FAR)


def redraw_far(
    generator: np.random.Generator, values: NDArray[np.float64], *, beyond: float
) -> None:
    """Draw each value beyond ±``beyond`` again, in place, given that it is and given its sign.

    Guarantee: leaves the law of Gaussian ``values`` what it is, for any ``beyond`` > 0.
    """
    far = np.flatnonzero(np.abs(values) > beyond)
    values[far] = np.copysign([_far_value(generator, beyond) for _ in far], values[far])


def _far_value(generator: np.random.Generator, beyond: float) -> float:
    """|X| given |X| > ``beyond``: Marsaglia 1964."""
    while True:
        uniform = 0.5
        for word in generator.integers(1 << 63, size=WORDS):
            uniform = (uniform + float(word)) * SCALE
        value = math.sqrt(beyond**2 - 2 * math.log(uniform))
        if generator.random() * value <= beyond:
            return value
