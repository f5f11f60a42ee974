"""`ClippedSum`: what every gradient engine returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class ClippedSum:
    """The sum over units of their clipped gradients, before noise.

    Guarantee: adding or removing one unit moves ``value`` by at most ``sensitivity`` in L2,
    rounding included, up to `userdp.gradients.clipping.MOST_UNITS` units.

    Attributes:
        value: float64 by trainable parameter name, each tensor once however often it is tied.
            Float64 because the rounding of the *summation* belongs to the sensitivity. Round to
            the parameter's dtype only after the noise has been added: then it is post-processing.
        norms: float64, (units,); each unit's norm before the unit clip. Operator-only.
        losses: float64, (units,); each unit's mean loss. Operator-only.
        non_finite: units that counted as zero for a NaN or infinite gradient. Operator-only.
        sensitivity: the ``l2_clip_norm`` that was asked for.
    """

    value: dict[str, Tensor]
    norms: Tensor
    losses: Tensor
    non_finite: int
    sensitivity: float
