"""Samplers: from counts to indices. Each realises the mechanism of a `userdp.plan.Plan`."""

from userdp.cohorts.cohort import Cohort, Sampler
from userdp.cohorts.samplers import build_sampler

__all__ = ["Cohort", "Sampler", "build_sampler"]
