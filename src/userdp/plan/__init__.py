"""The frozen `Plan`: the mechanism and every public constant of a private run.

The sampler and the accounted mechanism (`Plan.mechanism`) are both built from the plan's
``sampling``, so that what is claimed is what runs.
"""

from userdp.plan.origin import LedgerLine, MadeFor, NonPrivateLook, Origin
from userdp.plan.plan import Budget, Plan
from userdp.plan.step import StepRecord
from userdp.plan.tuning import FixedGrid, PrivateSelection, Tuning

__all__ = [
    "Budget",
    "FixedGrid",
    "LedgerLine",
    "MadeFor",
    "NonPrivateLook",
    "Origin",
    "Plan",
    "PrivateSelection",
    "StepRecord",
    "Tuning",
]
