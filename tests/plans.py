"""Plans that tests share: small, with noise given, so that nothing is calibrated."""

from dataclasses import replace

from papers import plans
from userdp.core.codec import decode
from userdp.noise import Gaussian
from userdp.plans import Plan
from userdp.sampling import (
    FixedGraph,
    PoissonExamples,
    PoissonUsers,
    Sampling,
    ShuffleExamples,
    ShuffleUsers,
)

_CLIP = {
    "l2_clip_norm": "l2_norm",
    "item_clip_norm": "item_norm",
    "clip_form": "form",
    "clip_stability": "stability",
    "layer_split": "split",
    "adaptive": "adaptation",
}
_BUDGET = ("target_delta", "target_epsilon")
_SHUFFLED = {PoissonUsers: ShuffleUsers, PoissonExamples: ShuffleExamples}


def plan_of_size(
    sampling: type[Sampling], size: float, *, unsafe_shuffle: bool = False, **values
) -> Plan:
    """`papers.plans.plan_of_size`, with either the noise or a budget given."""
    assert (values.get("noise_multiplier") is None) != (values.get("target_epsilon") is None)
    return plans.plan_of_size(_SHUFFLED[sampling] if unsafe_shuffle else sampling, size, **values)


_USUAL = {"group_size": 4, "steps": 5, "l2_clip_norm": 0.5, "target_delta": 1e-5}


def uls_plan(**changes) -> Plan:
    """Of 100 users 10 are expected a step: q = ``cohort_size / population``."""
    values = {**_USUAL, "population": 100, "cohort_size": 10, "noise_multiplier": 2.0, **changes}
    return plan_of_size(PoissonUsers, values.pop("cohort_size"), **values)


def els_plan(*, fixed_graph: bool = False, **changes) -> Plan:
    """Of 400 capped examples 20 are expected a step: p = ``batch_size / population``."""
    values = {**_USUAL, "population": 400, "batch_size": 20, "noise_multiplier": 3.0, **changes}
    sampling = FixedGraph if fixed_graph else PoissonExamples
    return plan_of_size(sampling, values.pop("batch_size"), **values)


def changed_plan(plan: Plan, **changes) -> Plan:
    """The plan with other constants, wherever in it they lie."""
    for name, value in changes.items():
        if name in _CLIP:
            plan = replace(plan, clip=replace(plan.clip, **{_CLIP[name]: value}))
        elif name in _BUDGET:
            plan = replace(plan, budget=replace(plan.budget, **{name: value}))
        elif name == "noise_multiplier":
            plan = replace(plan, noise=Gaussian(multiplier=value))
        elif name in ("group_size", "sampling_probability", "cap", "batch_size"):
            plan = replace(plan, sampling=replace(plan.sampling, **{name: value}))
        elif name == "unsafe_shuffle":
            kind = _SHUFFLED[type(plan.sampling)] if value else type(plan.sampling)
            fields = {
                "sampling_probability": plan.sampling.sampling_probability,
                "group_size": plan.sampling.group_size,
            }
            plan = replace(plan, sampling=kind(**fields))
        else:
            plan = replace(plan, **{name: value})
    return plan


def as_plan(values) -> Plan:
    """A plan from plain values, as a reader makes it."""
    return decode(Plan, values, what="the plan")
