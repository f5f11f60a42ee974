r"""`Gaussian`, the noise of the steps, as it is drawn: by which sampler, and how far from its law.

No torch, and no NumPy before a number is drawn: the price of a plan (`userdp.accounting.bracket`),
the ledger and the report read the constants; `userdp.gradients.noise` draws by them, on a CPU by
`draw_on_host`: NumPy's ziggurat, whose far draws are drawn again.

A coordinate's noise is σ(X₁ + X₂)/√2 with two independent draws of a standard Gaussian, which is
again a standard Gaussian times σ. Each sampler returns a draw X' of |X'| at most some end r, and

.. math:: P(|X| > r) = 2Q(r) \le e^{-r^2/2} \le 2^{-190} \text{ for a Gaussian } X.

**How far from a Gaussian.** Take X' to have the law of X given |X| <= r (what is assumed beside
this says `FLOATING_POINT_ASSUMPTION`). Then X' and X can be drawn together such that they are equal
except with probability P(|X| > r). Do so one draw after the other, over 2 draws for each of at most
`MOST_COORDINATES` coordinates of each of T steps: everything that a run releases is a function of
its data, its cohorts and these draws, so the real run and the ideal one are equal except with
probability

.. math:: τ = T \cdot 2 \cdot 2^{40} \cdot 2^{-190} = T \cdot 2^{-149},

whatever the data and however later steps depend on earlier ones. τ bounds the total variation
distance of the two; it is a function of T alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from userdp.core.errors import UseError
from userdp.core.vocabulary import require_noise_multiplier

if TYPE_CHECKING:  # the law and the price are read where numpy need not be loaded
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Gaussian:
    """Independent Gaussian noise on each coordinate of each step's clipped sum.

    Args:
        multiplier: σ, the standard deviation of the noise that is drawn anew at each step, divided
            by the clip norm; > 0. Beside the count of adaptive clipping the sum has more, see
            `sum_noise_multiplier`.

    Raises:
        UseError: the multiplier is out of its range (NaN included).
    """

    kind: ClassVar[str] = "gaussian"

    multiplier: float

    def __post_init__(self) -> None:
        require_noise_multiplier(self.multiplier)


_LEAST_RATIO = 0.55
_ROUNDING = 1 + 1e-12


def sum_noise_multiplier(*, noise_multiplier: float, count_noise_std: float) -> float:
    r"""The noise that a sum needs beside the count of adaptive clipping: σ_Δ, rounded up.

    .. math:: \sigma_\Delta = (\sigma^{-2} - (2\sigma_b)^{-2})^{-1/2}

    A step of `userdp.noise.clip_forms.AdaptiveClipping` releases a pair: the clipped sum with noise
    of deviation :math:`\sigma_\Delta C_t`, and :math:`\sum_i (b_i - 1/2)` with noise of deviation
    :math:`\sigma_b`.

    **The pair costs as much as the sum alone at noise multiplier σ**. *Proof.* Measured in
    deviations of its noise, the pair is one Gaussian sum query to which each drawn unit adds
    :math:`(\mathrm{clip}(g_i) / (\sigma_\Delta C_t),\ \pm 1/(2\sigma_b))`, of norm at most 1/σ. So
    k drawn units of a user move it by at most k/σ (the count's share is k/2, not 1/2), which is all
    that Theorems 1-3 of Charles et al. ask; :math:`C_t` is a function of earlier releases, and
    adaptive composition allows it. ∎

    Args:
        noise_multiplier: σ, of the pair.
        count_noise_std: σ_b.

    Raises:
        UseError: ``count_noise_std`` is not above 0.55 ``noise_multiplier``: the count alone would
            cost (nearly) all of the budget, or more.

    >>> sigma = sum_noise_multiplier(noise_multiplier=1.0, count_noise_std=2.5)
    >>> round(sigma, 4), 1 / math.hypot(1 / sigma, 1 / (2 * 2.5)) >= 1.0
    (1.0206, True)
    """
    if not _LEAST_RATIO * noise_multiplier < count_noise_std < math.inf:
        raise UseError(
            f"count_noise_std must be finite and above {_LEAST_RATIO} times the noise multiplier "
            f"({noise_multiplier:g}), got {count_noise_std!r}: the count of clipped units alone "
            "would cost the whole budget",
            hint="leave it out for a good default",
        )
    share = noise_multiplier / (2 * count_noise_std)
    return noise_multiplier / math.sqrt((1 - share) * (1 + share)) * _ROUNDING


DRAWS = 2
"""Independent draws that are added up for the noise of one coordinate."""

TAIL_BITS = 190
"""An exact Gaussian passes a sampler's end with probability at most 2^-TAIL_BITS."""

MOST_COORDINATES = 2**40
"""A public bound on the numbers that one step releases with noise; `NoiseSource` refuses more.

One user may move all of them. Float64 sums of so many numbers take 8 TiB.
"""


class NoiseSampler(StrEnum):
    """What drew a step's noise, as its line in the ledger says.

    ``HOST``: NumPy's ziggurat on a CPU. ``DEVICE``: a Box-Muller transform of 64-bit integers, on
    the accelerator that holds the sum. Both are float64, two draws to a number.
    """

    HOST = "host-float64-pair"
    DEVICE = "device-float64-pair"

    @property
    def in_words(self) -> str:
        """Where and by what the noise was drawn, for a report."""
        if self is NoiseSampler.HOST:
            return "in float64 on a CPU by NumPy (a ziggurat over PCG64DXSM)"
        return (
            "in float64 on an accelerator by a Box-Muller transform of 63-bit integers from "
            "torch's generator there"
        )

    @property
    def seeding(self) -> str:
        """How many fresh bits of seed each of the two draws of a block has, for a report."""
        if self is NoiseSampler.HOST:
            return "256 on a CPU"
        return "64 on an accelerator"


KNOWN_SAMPLERS = frozenset(str(sampler) for sampler in NoiseSampler)
"""What a ledger's line must name for a claim: the samplers that `distance` speaks of."""

FLOATING_POINT_ASSUMPTION = (
    "Noise is the sum of two float64 draws over the square root of 2, scaled and added in float64 "
    "and rounded once, last, to a public grid of at most 2^-20 standard deviations. Proven: every "
    "release lies on that grid whatever the data, and the chance of a draw beyond a sampler's end "
    "is part of delta. Assumed, and measured for known attacks only: that within the ends the "
    "grid's cells have a Gaussian's probabilities, and that the generators behave like true "
    "randomness (grade: theoretical)."
)


def distance(steps: float) -> float:
    """τ: the total variation distance of ``steps`` noisy steps from those with Gaussian noise.

    Args:
        steps: T, >= 0; an expectation where the number of steps is random and independent of the
            data and of the noise (the coupling is then taken given that number).

    >>> distance(1) == 2.0**-149
    True
    """
    return steps * DRAWS * MOST_COORDINATES * 2.0**-TAIL_BITS


WORDS = 3
r"""Words w of 63 independent bits in a uniform U = (w₁ + (w₂ + (w₃ + ½) 2^-63) 2^-63) 2^-63.

That is the middle of one of 2^189 equal intervals of (0, 1), rounded to float64. So U has all its
53 bits however small it is, and so has its logarithm. A device draws w₂ and w₃ where w₁ < 2^53
alone (one number in 1,024), and takes ½ for what they say elsewhere: beyond the 53 bits that w₁
fills there. In both samplers P(|X| > end) <= e^{-end²/2} <= 2^-190."""

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
    import numpy as np

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
