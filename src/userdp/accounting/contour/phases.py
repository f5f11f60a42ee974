"""What is composed: phases of identical noisy steps, and the laws of their random shift.

Units: shifts are in clip norms, noise is ``noise_multiplier`` clip norms. Step outputs are compared
as P = N(0, sigma^2) against Q = sum_k p_k N(shift_k, sigma^2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.accounting.laws import Binomial, Law
from userdp.vocabulary import require_count

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

    Nothing is checked here: `userdp.accounting.mechanisms` takes the constants of what ran, and
    checks them.
    """

    shifts: tuple[float, ...]
    log_probabilities: tuple[float, ...]
    noise_multiplier: float
    count: int

    @property
    def is_gaussian(self) -> bool:
        """One certain shift: a plain Gaussian mechanism."""
        return len(self.shifts) == 1


def phase_of(law: Law, *, scale: float = 1.0, noise_multiplier: float, count: int) -> Phase:
    """``count`` steps whose shift is ``scale`` * k, where k is drawn from ``law``.

    Args:
        law: binomial where each of a user's items joins by a coin of its own (Charles et al. 2024,
            Theorem 1; of one item, Theorem 2); with probability 1 the plain Gaussian mechanism.
            Hypergeometric for a fixed batch without replacement, with a ``scale`` of 2, since a
            sampled item also displaces another one (Ganesh 2024, Theorem 3.3).
        scale: in clip norms.
        noise_multiplier: sigma > 0.
        count: steps.

    Raises:
        UseError: a batch larger than the smaller data set, which holds none of the user's items.
    """
    if isinstance(law, Binomial) and law.probability == 1:
        return Phase(
            shifts=(float(scale * law.trials),),
            log_probabilities=(0.0,),
            noise_multiplier=noise_multiplier,
            count=count,
        )
    log_p = _log_probabilities(law)
    keep = log_p > -_LEAST_LOG  # the rest, < 1e7 e^-5000 in all, is accounted for by `Side`
    shifts = np.arange(log_p.size, dtype=np.float64)[keep] * scale
    return Phase(
        shifts=tuple(shifts.tolist()),
        log_probabilities=tuple(log_p[keep].tolist()),
        noise_multiplier=noise_multiplier,
        count=count,
    )


def _log_probabilities(law: Law) -> Floats:
    """log p_0, log p_1, …, from log(p_{k+1}/p_k), which falls.

    The logarithms are added up from the mode, so that rounding is near 1e-16 where most of the
    mass is.
    """
    k = np.arange(law.most, dtype=np.float64)
    if isinstance(law, Binomial):
        p = law.probability
        log_ratios = np.log((law.trials - k) / (k + 1)) + (math.log(p) - math.log1p(-p))
    else:
        others = require_count("population", law.population - law.marked, at_least=law.draws)
        numerator = (law.marked - k) * (law.draws - k)  # from k = 0: others can fill the batch
        log_ratios = np.log(numerator / ((k + 1) * (others - law.draws + k + 1)))
    mode = int(np.searchsorted(-log_ratios, 0.0))  # ratios fall: first one below 0 follows the mode
    up = _cumulated(log_ratios[mode:])
    down = -_cumulated(log_ratios[:mode][::-1])[::-1]
    log_p = np.concatenate([down, [0.0], up])
    log_p -= math.log(math.fsum(np.exp(log_p)))
    return log_p


def _cumulated(terms: Floats) -> Floats:
    """Running sums whose own rounding is added back (each step's is exactly known: TwoSum)."""
    sums = np.cumsum(terms)
    before = np.concatenate([[0.0], sums[:-1]])
    taken = sums - before
    lost = (before - (sums - taken)) + (terms - taken)
    out: Floats = sums + np.cumsum(lost)
    return out
