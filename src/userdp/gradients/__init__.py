"""Cohort → clipped sum with a stated sensitivity → noise. The one place where users meet.

`Units` are the rows of a cohort; `clipped_sum` (the reference engine) clips each unit's gradient
and sums, `get_engine` names faster ways to the same sum; `NoiseSource` adds the noise. Everything
after that is post-processing.
"""

from userdp.gradients.clip_factors import CLIP_MARGIN, ClippedSum, ClipRule
from userdp.gradients.engines import ENGINES, Engine, get_engine
from userdp.gradients.losses import (
    Loss,
    MaskedLoss,
    causal_lm_loss,
    require_masked,
    row_losses,
)
from userdp.gradients.models import require_uncoupled, trainable_parameters
from userdp.gradients.noise import NoiseSource
from userdp.gradients.units import Units

clipped_sum = ENGINES["reference"]

__all__ = [
    "CLIP_MARGIN",
    "ENGINES",
    "ClipRule",
    "ClippedSum",
    "Engine",
    "Loss",
    "MaskedLoss",
    "NoiseSource",
    "Units",
    "causal_lm_loss",
    "clipped_sum",
    "get_engine",
    "require_masked",
    "require_uncoupled",
    "row_losses",
    "trainable_parameters",
]
