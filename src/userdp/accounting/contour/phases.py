"""What is composed: phases of identical noisy steps, and the laws of their random shift.

Units: shifts are in clip norms, noise is ``noise_multiplier`` clip norms. Step outputs are compared
as P = N(0, sigma^2) against Q = sum_k p_k N(shift_k, sigma^2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.vocabulary import require_count, require_positive, require_probability

Floats = NDArray[np.float64]

_LEAST_LOG = 5000.0  # components of probability below e^-5000 are not kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """``count`` steps of one mixture-of-Gaussians mechanism.

    Guarantee: none by itself; a phase only says what ran. Every bound is about the pair
    P = N(0, sigma^2), Q = sum_k exp(log_probabilities[k]) N(shifts[k], sigma^2), ``count`` times.

    Args:
        shifts: finite, >= 0, strictly ascending; in clip norms.
        log_probabilities: same length; probabilities sum to 1 within 1e-9 (then they are
            normalised).
        noise_multiplier: sigma > 0, finite.
        count: steps, a whole number >= 1.

    Raises:
        ValueError: for anything out of these ranges.
    """

    shifts: tuple[float, ...]
    log_probabilities: tuple[float, ...]
    noise_multiplier: float
    count: int

    def __post_init__(self) -> None:
        require_positive("noise_multiplier", self.noise_multiplier)
        require_count("count", self.count)
        if not self.shifts or len(self.shifts) != len(self.log_probabilities):
            raise ValueError(
                "shifts and log_probabilities must have the same length of at least 1, got "
                f"{len(self.shifts)} and {len(self.log_probabilities)}"
            )
        if not all(0 <= s < math.inf for s in self.shifts) or not all(
            a < b for a, b in zip(self.shifts, self.shifts[1:], strict=False)
        ):
            raise ValueError("shifts must be finite, at least 0 and strictly ascending")
        if not all(-math.inf < w <= 1e-9 for w in self.log_probabilities):
            raise ValueError("log_probabilities must be finite and at most 0")
        total = math.fsum(math.exp(w) for w in self.log_probabilities)
        if not abs(total - 1) <= 1e-9:
            raise ValueError(f"probabilities must sum to 1 (within 1e-9), got {total!r}")

    @property
    def is_gaussian(self) -> bool:
        """One certain shift: a plain Gaussian mechanism."""
        return len(self.shifts) == 1


def _from_log_ratios(
    log_ratios: Floats, *, scale: float, noise_multiplier: float, count: int
) -> Phase:
    """The phase of shift ``scale``·k, k = 0, 1, ..., from log(p_{k+1}/p_k), which must fall.

    They are added up from the mode, so that rounding is near 1e-16 where most of the mass is.
    """
    mode = int(np.searchsorted(-log_ratios, 0.0))  # ratios fall: first one below 0 follows the mode
    up = _cumulated(log_ratios[mode:])
    down = -_cumulated(log_ratios[:mode][::-1])[::-1]
    log_p = np.concatenate([down, [0.0], up])
    log_p -= math.log(math.fsum(np.exp(log_p)))
    keep = log_p > -_LEAST_LOG  # the rest, < 1e7 e^-5000 in all, is accounted for by `Side`
    shifts = np.arange(log_p.size, dtype=np.float64)[keep] * scale
    return Phase(
        shifts=tuple(shifts.tolist()),
        log_probabilities=tuple(log_p[keep].tolist()),
        noise_multiplier=noise_multiplier,
        count=count,
    )


def _cumulated(terms: Floats) -> Floats:
    """Running sums whose own rounding is added back (each step's is exactly known: TwoSum)."""
    sums = np.cumsum(terms)
    before = np.concatenate([[0.0], sums[:-1]])
    taken = sums - before
    lost = (before - (sums - taken)) + (terms - taken)
    out: Floats = sums + np.cumsum(lost)
    return out


def gaussian_phase(*, shift: float = 1.0, noise_multiplier: float, count: int) -> Phase:
    """Full participation with a fixed ``shift`` (in clip norms): the plain Gaussian mechanism."""
    require_positive("shift", shift)
    return Phase(
        shifts=(float(shift),),
        log_probabilities=(0.0,),
        noise_multiplier=noise_multiplier,
        count=count,
    )


def binomial_phase(
    *,
    group_size: int,
    sampling_probability: float,
    noise_multiplier: float,
    count: int,
    scale: float = 1.0,
) -> Phase:
    """Poisson sampling of the ``group_size`` examples of one user (Charles et al. 2024, Thm 1).

    The shift is ``scale`` * Binom(group_size, p); ``group_size`` 1 is user sampling (Thm 2).
    """
    require_count("group_size", group_size, at_most=10**7)
    require_probability("sampling_probability", sampling_probability)
    p = sampling_probability
    if p == 1:
        return gaussian_phase(
            shift=scale * group_size, noise_multiplier=noise_multiplier, count=count
        )
    k = np.arange(group_size, dtype=np.float64)
    log_ratios = np.log((group_size - k) / (k + 1)) + (math.log(p) - math.log1p(-p))
    return _from_log_ratios(log_ratios, scale=scale, noise_multiplier=noise_multiplier, count=count)


def hypergeometric_phase(
    *,
    batch_size: int,
    population: int,
    group_size: int,
    noise_multiplier: float,
    count: int,
    scale: float = 2.0,
) -> Phase:
    """A fixed batch without replacement: shift 2 * Hypergeom(B, n + k, k) (Ganesh 2024, Thm 3.3).

    Args:
        batch_size: B >= 1.
        population: n >= B, a public lower bound on the size of the smaller data set.
        group_size: k, the examples of one user.
        noise_multiplier: sigma > 0.
        count: steps.
        scale: 2 for the theorem (a sampled example also displaces another one).
    """
    require_count("batch_size", batch_size)
    require_count("population", population, at_least=batch_size)
    require_count("group_size", group_size, at_most=10**7)
    top = min(batch_size, group_size)
    j = np.arange(top, dtype=np.float64)  # population >= batch_size, so 0 draws are possible
    numerator = (group_size - j) * (batch_size - j)
    log_ratios = np.log(numerator / ((j + 1) * (population - batch_size + j + 1)))
    return _from_log_ratios(log_ratios, scale=scale, noise_multiplier=noise_multiplier, count=count)
