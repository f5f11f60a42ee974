r"""`Clip`: how each drawn unit's gradient is bounded, and how the bound may adapt.

**Adaptive quantile clipping**: the clip norm follows a quantile of the units' norms, under DP. At
step t the release is a *pair*: the clipped sum with noise of deviation
:math:`\sigma_\Delta C_t` on each coordinate, and :math:`\sum_i (b_i - 1/2)` with noise of deviation
:math:`\sigma_b`, where :math:`b_i` says whether unit i has norm at most :math:`C_t`. Then

.. math:: C_{t+1} = C_t \exp(-\eta (\tilde b_t - \gamma)), \qquad
          \tilde b_t = \tfrac12 + \tfrac1M \Big(\sum_i (b_i - \tfrac12) + \sigma_b z\Big)

with M the plan's public denominator, never the number of units drawn.

What the pair costs, and how much noise its sum therefore needs:
`userdp.noise.gaussian.sum_noise_multiplier`.

Source: Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping", Algorithm 1
and Theorem 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from userdp.core.errors import UseError, one_of
from userdp.core.vocabulary import require_positive

FARTHEST = 2.0**20
"""The clip norm stays within this factor of the plan's: a public constant."""

LEAST_CLIP = 1e-8
"""The least clip norm: float32 squares of gradients that are clipped to less may vanish."""


class ClipForm(StrEnum):
    """How a unit's gradient g becomes one of norm at most C; none of them moves ε.

    ``THRESHOLD``: g · min(1, C / ‖g‖) (Charles et al. 2024, Algorithms 1 and 2).
    ``NORMALIZED``: the same, and the noisy sum is divided by C: the learning rate then means the
    same at every C (De et al. 2022, Section 3.3).
    ``AUTOMATIC``: g · C / (‖g‖ + γ), so that C too is only a scale; divided by C as well
    (Bu et al. 2023, "Automatic Clipping", AUTO-S).
    """

    THRESHOLD = "threshold"
    NORMALIZED = "normalized"
    AUTOMATIC = "automatic"


OwnForm: TypeAlias = Callable[[float, float], float]
"""``form(norm, clip_norm)``: the factor of one unit's gradient."""

OWN_FORMS: dict[str, OwnForm] = {}
"""By the name that a plan's clip gives; see `clip_form`."""


def clip_form(name: str) -> Callable[[OwnForm], OwnForm]:
    """Register a form of clipping under the name that `Clip` then takes as its ``form``.

    Guarantee: each unit adds at most C in norm, whatever the function returns: the engines hold it
    to that (`userdp.gradients.clip_factors`). So ε does not depend on it.

    Args:
        name: not one of `ClipForm`, whose meaning plans rest on.

    Raises:
        UseError: the name is taken by a form of userdp's own.
    """
    if name in set(ClipForm):
        raise UseError(f"{name!r} is the name of a form of userdp's own: choose another name")

    def register(form: OwnForm) -> OwnForm:
        OWN_FORMS[name] = form
        return form

    return register


class LayerSplit(StrEnum):
    """How the clip norm C is split over layers, each clipped to its own C_l: Σ C_l² = C².

    ``UNIFORM``: C_l² = C² / layers. ``DIMENSION``: C_l² is proportional to the layer's number of
    parameters. A layer is the trainable parameters of one module (McMahan et al. 2018).
    """

    UNIFORM = "uniform"
    DIMENSION = "dimension"


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
            raise UseError(f"quantile must be in (0, 1), got {self.quantile!r}")
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
            start: :math:`C_0`; the answer stays within `FARTHEST` of it, and
                at least `LEAST_CLIP`.

        >>> AdaptiveClipping(quantile=0.5, learning_rate=0.2).next_clip_norm(
        ...     l2_clip_norm=1.0, noisy_count=0.0, denominator=10.0, start=1.0
        ... )
        1.0
        """
        fraction = min(1.0, max(0.0, 0.5 + noisy_count / denominator))
        moved = l2_clip_norm * math.exp(-self.learning_rate * (fraction - self.quantile))
        return min(start * FARTHEST, max(start / FARTHEST, LEAST_CLIP, moved))


@dataclass(frozen=True, kw_only=True, slots=True)
class Clip:
    """How the gradient of each drawn unit is bounded; public constants, fixed with the plan.

    Args:
        l2_norm: C, in gradient units; with ``adaptation``, of the first step.
        item_norm: clips each example of a unit before the unit, if given.
        form: what clipping does to a unit's gradient; or the name of a form of your own
            (`clip_form`), which moves no ε: whatever it does, the engines hold each unit to C.
        stability: γ of ``automatic`` clipping, in gradient units; says nothing otherwise.
        split: clip each layer to its share of C, if given.
        adaptation: the clip norm follows a quantile of the norms, if given; the count it needs is
            part of what the plan's noise multiplier accounts for.

    Raises:
        UseError: a field is out of its range (NaN included).
    """

    l2_norm: float
    item_norm: float | None = None
    form: ClipForm | str = ClipForm.THRESHOLD
    stability: float = 0.01
    split: LayerSplit | None = None
    adaptation: AdaptiveClipping | None = None

    def __post_init__(self) -> None:
        require_positive("l2_clip_norm", self.l2_norm)
        if self.form in set(ClipForm):  # a setting of a command line is a word
            object.__setattr__(self, "form", ClipForm(self.form))
        elif self.form not in OWN_FORMS:
            known = one_of(self.form, [*ClipForm, *OWN_FORMS])
            raise UseError(
                f"there is no form of clipping named {self.form!r}",
                hint=f"{known}; or import the module that registers it by clip_form",
            )
        if self.item_norm is not None:
            require_positive("item_norm", self.item_norm)
        if not 1e-6 <= self.stability <= 1e6:
            raise UseError(f"stability must be in [1e-6, 1e6], got {self.stability!r}")
        if self.adaptation is not None and self.form is ClipForm.AUTOMATIC:
            raise UseError(
                "automatic clipping has no threshold that a quantile could set",
                hint="adapt threshold or normalized clipping",
            )

    @property
    def divided(self) -> bool:
        """Whether the noisy sum is divided by C."""
        return self.form in (ClipForm.NORMALIZED, ClipForm.AUTOMATIC)
