"""The frozen `Plan`: the mechanism and every public constant of a private run.

The sampler (`userdp.cohorts`) and the accounted mechanism (`Plan.mechanism`) are both built from
one plan, so that what is claimed is what runs.
"""

from userdp.plan.plan import SCHEMA, Plan
from userdp.plan.step import StepRecord
from userdp.plan.tuning import FixedGrid, PrivateSelection, Tuning

__all__ = ["SCHEMA", "FixedGrid", "Plan", "PrivateSelection", "StepRecord", "Tuning"]
