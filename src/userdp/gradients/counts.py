"""The count of unclipped units that adaptive clipping follows, released with noise."""

from __future__ import annotations

import torch
from torch import Tensor

from userdp.gradients.noise import Noise

COUNT_SENSITIVITY = 0.5
"""How far one unit moves `centred_count`: k drawn units of a user move it by k / 2."""


def centred_count(norms: Tensor, *, l2_clip_norm: float) -> float:
    """The sum over units of b - 1/2, where b is 1 for a norm of at most ``l2_clip_norm``, else 0.

    Guarantee: adding or removing one unit, finite or not, moves it by exactly
    `COUNT_SENSITIVITY`. Centring halves the sensitivity of the count itself.

    Source: Andrew et al. 2021, Section 2.

    >>> centred_count(torch.tensor([0.1, 0.2, 3.0, float("nan")]), l2_clip_norm=1.0)
    0.0
    """
    unclipped = int((norms <= l2_clip_norm).sum())
    return unclipped - COUNT_SENSITIVITY * len(norms)


def noisy_count(
    norms: Tensor, *, l2_clip_norm: float, count_noise_std: float, noise: Noise
) -> float:
    """`centred_count` plus N(0, ``count_noise_std``²): the second half of a step's release.

    Guarantee: together with the sum, accounted for in `userdp.clip`.

    Args:
        norms: (units,); `ClippedSum.norms`.
        l2_clip_norm: the step's.
        count_noise_std: σ_b, in units.
        noise: the run's; fresh for every call.
    """
    count = centred_count(norms, l2_clip_norm=l2_clip_norm)
    value = {"count": torch.tensor([count], dtype=torch.float64)}
    noise.add_(value, count_noise_std)
    return float(value["count"])
