"""A clip of your own: smooth clipping, g · C / √(C² + ‖g‖²).

The plain clip leaves a gradient of norm 0.99 C as it is and one of norm 1.01 C too, nearly: it has
an edge at C. This one has none: every gradient keeps its direction, its norm stays below C, and
large gradients are told from larger ones.

No proof is needed: the engines hold each unit to C whatever a form returns, and ask it of each
unit alone, so ε is that of the plain clip.
"""

from __future__ import annotations

import math

import userdp
from userdp.noise import Gaussian
from userdp.noise.clip_forms import clip_form
from userdp.plans import Budget
from userdp.sampling import PoissonUsers


@clip_form("smooth")
def smooth(norm: float, clip_norm: float) -> float:
    """The factor of one unit's gradient."""
    return clip_norm / math.hypot(clip_norm, norm)


plan = userdp.Plan(
    sampling=PoissonUsers.of_size(10, population=200, group_size=2),
    clip=userdp.Clip(l2_norm=0.5, form="smooth"),
    noise=Gaussian(multiplier=1.0),
    steps=3,
    population=200,
    budget=Budget(target_delta=1e-5),
)
