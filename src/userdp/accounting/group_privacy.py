r"""Group privacy: what an example-level guarantee alone says about a user with k examples.

The baselines that the mixture-of-Gaussians accounting is measured against (Charles et al. 2024,
Figure 1; Ganesh 2024, Figures 1 and 2; Chua et al. 2024, Algorithm 1). They know nothing of the
mechanism but its example-level curve, which is handed in as a function. If a mechanism is
(ε, δ)-DP for one example, it is (kε, f_k(ε)·δ)-DP for k of them, with

============  =====================================  ==============================================
``VADHAN``    f_k(ε) = k e^{kε}                      Vadhan 2017, Lemma 2.2 (Ganesh 2024, Lemma 1.1)
``BEST``      f_k(ε) = (e^{kε} - 1) / (e^ε - 1)      Chua et al. 2024, Proposition 1 and Algorithm 1
============  =====================================  ==============================================

``BEST`` is δ + e^ε·δ + ... + e^{(k-1)ε}·δ, one step of the definition after the other, and is the
best possible from a single (ε, δ). (Proposition 1 prints e^{kε-1} for e^{kε} - 1; Algorithm 1 of
the same paper, which uses it the other way round, is right.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from userdp.accounting.certified_search import least
from userdp.core.vocabulary import require_count, require_delta, require_epsilon, require_positive

_LOG_MAX = math.log(1.7e308)


class Conversion(StrEnum):
    """Which lemma turns an example-level (ε, δ) into a group's."""

    VADHAN = "vadhan"
    BEST = "best"


class EpsilonDelta(NamedTuple):
    """A pair (ε, δ). A δ of 1 or more says nothing; ``inf`` is beyond the floating range."""

    epsilon: float
    delta: float


def log_factor(conversion: Conversion, epsilon: float, k: int) -> float:
    """log f_k(ε): what the example-level δ is multiplied by, as a logarithm, so it cannot overflow.

    >>> log_factor(Conversion.BEST, 0.0, 8) == math.log(8)
    True
    """
    epsilon, k = require_epsilon(epsilon), require_count("k", k)
    if conversion == Conversion.VADHAN:
        return math.log(k) + k * epsilon
    if k == 1:
        return 0.0
    if epsilon == 0:
        return math.log(k)
    # (e^{kε} - 1)/(e^ε - 1) = e^{(k-1)ε} (1 - e^{-kε})/(1 - e^{-ε})
    ratio = math.expm1(-k * epsilon) / math.expm1(-epsilon)
    return (k - 1) * epsilon + math.log(ratio)


def group_guarantee(
    epsilon: float, delta: float, k: int, conversion: Conversion = Conversion.BEST
) -> EpsilonDelta:
    """(kε, f_k(ε)·δ): the guarantee of a group of k from that of one example.

    Guarantee: a mechanism that is (``epsilon``, ``delta``)-DP for one example satisfies the
    returned pair for k examples together. δ is rounded up by 4e-15·(1 + kε - log δ), relative,
    which covers the rounding of the logarithms and of exp. For k = 1 and ``BEST`` nothing changes.

    Args:
        epsilon: example-level, finite, >= 0.
        delta: example-level, in [0, 1).
        k: examples in the group, >= 1.
        conversion: which lemma.

    Raises:
        ValueError: a parameter is out of range (NaN included).

    >>> group_guarantee(0.5, 1e-6, 1)
    EpsilonDelta(epsilon=0.5, delta=1e-06)
    >>> group_guarantee(100.0, 1e-6, 8, Conversion.VADHAN)
    EpsilonDelta(epsilon=800.0, delta=inf)
    """
    factor = log_factor(conversion, epsilon, k)
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be at least 0 and less than 1, got {delta!r}")
    if delta == 0 or factor == 0:
        return EpsilonDelta(k * epsilon, delta)
    exponent = math.log(delta) + factor
    if exponent > _LOG_MAX:
        return EpsilonDelta(k * epsilon, math.inf)
    allowance = 1 + 4e-15 * (1 + k * epsilon - math.log(delta))
    return EpsilonDelta(k * epsilon, max(math.exp(exponent) * allowance, 5e-324))


def group_epsilon(
    delta_of_epsilon: Callable[[float], float],
    k: int,
    delta: float,
    conversion: Conversion = Conversion.BEST,
) -> float:
    """The ε of a group of k at ``delta``, from a whole example-level curve δ₁(ε₁).

    Guarantee: an upper bound. It is kε₁ for an ε₁ at which f_k(ε₁)·δ₁(ε₁) <= ``delta`` was
    checked. ``inf`` where no ε₁ up to 1e6 does: the curve is flat at its accountant's
    round-off, or the δ₁ that is needed lies below the smallest double (Ganesh's k >= 9).

    Args:
        delta_of_epsilon: upper bound of the example-level δ at an ε >= 0; in [0, 1],
            non-increasing. 0 is taken for underflow, that is for 5e-324.
        k: examples in the group, >= 1.
        delta: the group's δ, in (0, 1).
        conversion: which lemma.

    Raises:
        ValueError: a parameter is out of range, or the curve left [0, 1] (NaN included).

    Source: Ganesh 2024, Section 4, "Vadhan analysis"; Charles et al. 2024, Figure 1.
    """
    k, log_delta = require_count("k", k), math.log(require_delta(delta))

    def too_small(epsilon: float) -> bool:
        log_example = math.log(max(_checked(delta_of_epsilon(epsilon)), 5e-324))
        slack = 4e-15 * (1 + k * epsilon - log_example)
        return log_example + log_factor(conversion, epsilon, k) + slack > log_delta

    if not too_small(0.0):
        return 0.0
    # Halving, without interpolation: a curve that is floored at its accountant's round-off has
    # corners, at which a secant leads astray.
    example = least(too_small, start=2.0**-10, most=1e6, smallest=1e-300, relative=1e-9)
    return math.inf if example is None else math.nextafter(k * example, math.inf)


def example_target(
    epsilon: float, delta: float, k: int, conversion: Conversion = Conversion.BEST
) -> EpsilonDelta:
    """The example-level (ε₁, δ₁) that gives a group of k the wanted (``epsilon``, ``delta``).

    Guarantee: `group_guarantee` of the returned pair is within (``epsilon``, ``delta``). With
    ``BEST`` this is the target of Algorithm 1, (ε/k, δ(e^{ε/k} - 1)/(e^ε - 1)). δ₁ is rounded
    down, and is 0 where it lies below the smallest double: then only a pure-DP mechanism will do.

    Args:
        epsilon: the group's, finite, > 0.
        delta: the group's, in (0, 1).
        k: examples in the group, >= 1.
        conversion: which lemma.

    Raises:
        ValueError: a parameter is out of range (NaN included).

    Source: Chua et al. 2024, Algorithm 1, line 2.
    """
    epsilon, k = require_positive("epsilon", epsilon), require_count("k", k)
    delta = require_delta(delta)
    example_epsilon = epsilon / k
    if k * example_epsilon > epsilon:
        example_epsilon = math.nextafter(example_epsilon, 0.0)
    factor = log_factor(conversion, example_epsilon, k)
    if factor == 0:
        return EpsilonDelta(example_epsilon, delta)
    allowance = 1 - 2e-14 * (1 + 2 * epsilon - math.log(delta))
    return EpsilonDelta(example_epsilon, math.exp(math.log(delta) - factor) * max(allowance, 0.0))


def _checked(delta: float) -> float:
    if not 0 <= delta <= 1:
        raise ValueError(f"the example-level curve must stay in [0, 1], got {delta!r}")
    return delta
