"""The frozen `Plan`, and how one is found: the preset, and the planner.

The sampler and the accounted mechanism (`Plan.mechanism`) are both built from the plan's
``sampling``, so that what is claimed is what runs.
"""

from userdp.plans.frozen_plan import Budget, Plan, StepRecord
from userdp.plans.provenance import MadeFor, Origin, Provenance
from userdp.plans.tuning_price import FixedGrid, PrivateSelection, Tuning

__all__ = [
    "Budget",
    "FixedGrid",
    "MadeFor",
    "Origin",
    "Plan",
    "PrivateSelection",
    "Provenance",
    "StepRecord",
    "Tuning",
]
