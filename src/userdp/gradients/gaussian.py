r"""Draws of a standard Gaussian in float64, on a CPU and on an accelerator, with far ends.

**On a CPU** (`draw_on_host`): NumPy's ziggurat. Its own tail, beyond 3.654, is 3.654 + x with
x = -log(1-U)/3.654 for a U of 53 bits, kept if -2 log(1-V) > x². So V's bits bound x by
√(2·53·log 2) = 8.572 and the value by 12.226, which an exact Gaussian passes with probability
2.3e-34; and near that end only few values occur. A draw beyond 6 is therefore drawn again, by
Marsaglia's tail: R = √(36 - 2 log U), which has the density of r e^{-r²/2} beyond 6, is kept with
probability 6/R, which leaves that of e^{-r²/2}. With `_uniform`'s U >= 2^-190 it ends at 17.30.

**On an accelerator** (`draw_on_device`): Box and Muller's transform of 63-bit integers,
√(-2 log U) (cos φ, sin φ). U >= 2^-190 again, so the radius ends at √(2·190·log 2) = 16.229. The
float64 normals that torch draws on CUDA come from uniforms of 53 bits and end near 8.6, which over
1e8 coordinates and 1e3 steps an exact Gaussian passes with probability 1e-6.

In both P(|X| > end) <= e^{-end²/2} <= 2^-190 (`userdp.noise.gaussian`).

**The uniform U** is (w₁ + (w₂ + (w₃ + ½) 2^-63) 2^-63) 2^-63 for words w of 63 independent bits:
the middle of one of 2^189 equal intervals of (0, 1), rounded to float64. So it has all its 53 bits
however small it is, and so has its logarithm. A device draws w₂ and w₃ where w₁ < 2^53 alone (one
number in 1,024), and takes ½ for what they say elsewhere: beyond the 53 bits that w₁ fills there.

Source: Marsaglia and Tsang 2000, "The Ziggurat Method"; Marsaglia 1964, "Generating a variable from
the tail of the normal distribution"; Box and Muller 1958.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_WORDS = 3  # of a uniform
_SCALE = 2.0**-63  # a word as a number in [0, 1)
_FILLED = 1 << 53  # from here on a word alone fills float64's bits
_FAR = 6.0
"""Where a draw on the CPU is redrawn: far inside the ziggurat's own tail, where its 53-bit uniforms
still have 2^40 values to a unit, and so rare (2e-9) that it costs no time."""


def draw_on_host(generator: np.random.Generator, out: NDArray[np.float64]) -> None:
    """Fill ``out`` with standard Gaussian numbers, of at most 17.31 in absolute value."""
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
        for word in generator.integers(1 << 63, size=_WORDS):
            uniform = (uniform + float(word)) * _SCALE
        value = math.sqrt(beyond**2 - 2 * math.log(uniform))
        if generator.random() * value <= beyond:
            return value


def draw_on_device(generator: torch.Generator, count: int) -> Tensor:
    """``count`` standard Gaussian numbers in float64 on the generator's device, at most 16.23.

    Works alike on every device that has float64, a CPU included. The host waits for the device
    once. Memory moves more numbers here than arithmetic units do, so each pass over them counts.
    """
    pairs = -(-count // 2)
    device = generator.device
    # `random_` without a range gives an int64 tensor 63 independent bits.
    word = torch.empty(pairs, dtype=torch.int64, device=device).random_(generator=generator)
    uniform = _scaled(word, _SCALE).add_(0.5 * _SCALE)
    few = (word < _FILLED).nonzero().view(-1)
    if len(few):
        rest = torch.full((len(few),), 0.5, dtype=torch.float64, device=device)
        more = torch.empty(len(few), dtype=torch.int64, device=device)
        for _ in range(_WORDS - 1):
            rest.add_(more.random_(generator=generator)).mul_(_SCALE)
        uniform[few] = rest.add_(word[few]).mul_(_SCALE)
    radius = uniform.log_().mul_(-2.0).sqrt_()
    angle = _scaled(word.random_(generator=generator), 2 * math.pi * _SCALE)
    return torch.view_as_real(torch.polar(radius, angle)).view(-1)[:count]


def _scaled(word: Tensor, scale: float) -> Tensor:
    """Words as float64, times ``scale``, in one pass over them."""
    return word.mul(torch.full((), scale, dtype=torch.float64, device=word.device))
