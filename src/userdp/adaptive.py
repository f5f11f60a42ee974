r"""Adaptive quantile clipping: the clip norm follows a quantile of the units' norms, under DP.

At step t the release is a *pair*: the clipped sum with noise of deviation
:math:`\sigma_\Delta C_t` on each coordinate, and :math:`\sum_i (b_i - 1/2)` with noise of deviation
:math:`\sigma_b`, where :math:`b_i` says whether unit i has norm at most :math:`C_t`. Then

.. math:: C_{t+1} = C_t \exp(-\eta (\tilde b_t - \gamma)), \qquad
          \tilde b_t = \tfrac12 + \tfrac1M \Big(\sum_i (b_i - \tfrac12) + \sigma_b z\Big)

with M the plan's public denominator, never the number of units drawn.

**The pair costs as much as the sum alone at effective noise multiplier σ**,
:math:`\sigma^{-2} = \sigma_\Delta^{-2} + (2\sigma_b)^{-2}`. *Proof.* Measured in deviations of its
noise, the pair is one Gaussian sum query to which each drawn unit adds
:math:`(\mathrm{clip}(g_i) / (\sigma_\Delta C_t),\ \pm 1/(2\sigma_b))`, of norm at most 1/σ. So k
drawn units of a user move it by at most k/σ (the count's share is k/2, not 1/2), which is all that
Theorems 1-3 of Charles et al. ask; :math:`C_t` is a function of earlier releases, and adaptive
composition allows it. ∎

Source: Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping", Algorithm 1
and Theorem 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from userdp.errors import UseError
from userdp.guarantees import require_positive

FARTHEST = 2.0**20
"""The clip norm stays within this factor of the plan's: a public constant."""

_LEAST_RATIO = 0.55
_ROUNDING = 1 + 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveClipping:
    """How the clip norm adapts; public constants.

    Args:
        quantile: γ, the fraction of units that should stay unclipped; in (0, 1).
        learning_rate: η, of the logarithm of the clip norm; in (0, 1].
        count_noise_std: σ_b, on the count of unclipped units; None takes
            ``max(M / 20, 2.5 * noise_multiplier)``, at which the sum's noise grows by 2% at most.

    Raises:
        UseError: a field is out of its range (NaN included).
    """

    quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise_std: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise UseError(f"the clip quantile must be in (0, 1), got {self.quantile!r}")
        require_positive("the clip norm's learning rate", self.learning_rate, at_most=1)
        if self.count_noise_std is not None:
            require_positive("count_noise_std", self.count_noise_std)

    def count_noise(self, *, noise_multiplier: float, denominator: float) -> float:
        """σ_b: the one given, or the default."""
        if self.count_noise_std is not None:
            return self.count_noise_std
        return max(denominator / 20, 2.5 * noise_multiplier)

    def next_clip_norm(
        self, *, l2_clip_norm: float, noisy_count: float, denominator: float, start: float
    ) -> float:
        """:math:`C_{t+1}`; post-processing of DP releases and public constants.

        Args:
            l2_clip_norm: :math:`C_t`.
            noisy_count: the released sum of ``b_i - 1/2``, noise included.
            denominator: M, the plan's.
            start: :math:`C_0`; the answer stays within `FARTHEST` of it.

        >>> AdaptiveClipping(quantile=0.5, learning_rate=0.2).next_clip_norm(
        ...     l2_clip_norm=1.0, noisy_count=0.0, denominator=10.0, start=1.0
        ... )
        1.0
        """
        fraction = min(1.0, max(0.0, 0.5 + noisy_count / denominator))
        moved = l2_clip_norm * math.exp(-self.learning_rate * (fraction - self.quantile))
        return min(start * FARTHEST, max(start / FARTHEST, moved))


def sum_noise_multiplier(*, noise_multiplier: float, count_noise_std: float) -> float:
    r"""The noise that the sum needs beside the count: :math:`\sigma_\Delta`, rounded up.

    .. math:: \sigma_\Delta = (\sigma^{-2} - (2\sigma_b)^{-2})^{-1/2}

    Raises:
        UseError: ``count_noise_std`` is not above 0.55 ``noise_multiplier``: the count alone would
            cost (nearly) all of the budget, or more.

    >>> sigma = sum_noise_multiplier(noise_multiplier=1.0, count_noise_std=2.5)
    >>> round(sigma, 4), joint_noise_multiplier(sigma, count_noise_std=2.5) >= 1.0
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


def joint_noise_multiplier(sum_multiplier: float, *, count_noise_std: float) -> float:
    """σ, the noise multiplier at which releasing sum and count together is accounted."""
    return 1 / math.hypot(1 / sum_multiplier, 1 / (2 * count_noise_std))
