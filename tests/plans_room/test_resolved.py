"""`resolve`: each field reaches the plan; refusals are in tests/cli/mistakes.toml."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from userdp.accounting.accountants import Accountant
from userdp.noise.clip_forms import AdaptiveClipping, Clip, ClipForm, LayerSplit
from userdp.plans import Plan
from userdp.plans.resolve_plan import PlanFields, resolve

CHOSEN = PlanFields(
    population=100, delta=1e-5, steps=5, cohort_size=10, group_size=4, l2_clip_norm=0.5,
    noise_multiplier=2.0,
)  # fmt: skip


def plan_of(**changes: Any) -> Plan:
    """The plan of `CHOSEN` with fields replaced."""
    plan, by_preset = resolve(None, replace(CHOSEN, **changes))
    assert by_preset is None
    return plan


def test_the_numbers_are_those_of_the_plan():
    plan = plan_of()
    assert plan.clip == Clip(l2_norm=0.5)
    assert (plan.steps, plan.population, plan.denominator) == (5, 100, 10)
    assert (plan.sampling.group_size, plan.sampling.sampling_probability) == (4, 0.1)
    assert (plan.noise.multiplier, plan.budget.target_delta) == (2.0, 1e-5)
    other = plan_of(cohort_size=None, batch_size=20, sampling={"kind": "examples"})
    assert other.algorithm == "ELS"
    assert other.sampling.sampling_probability == 0.2
    assert plan_of(accountant=Accountant.CONTOUR) == plan


def test_each_setting_of_the_clip_sets_its_field():
    clip = {"form": ClipForm.AUTOMATIC, "stability": 0.1, "split": LayerSplit.DIMENSION}
    assert plan_of(clip=clip).clip == Clip(l2_norm=0.5, **clip)
    assert plan_of(clip={"form": "normalized"}).clip.form is ClipForm.NORMALIZED
    told = {"quantile": 0.3, "learning_rate": 0.1, "count_noise_std": 4.0}
    assert plan_of(adaptation=told).clip.adaptation == AdaptiveClipping(**told)
    assert plan_of(adaptation={"quantile": 0.5}).clip.adaptation == AdaptiveClipping()


def test_a_budget_beside_all_numbers_is_met_by_the_least_noise():
    plan, _ = resolve(None, replace(CHOSEN, noise_multiplier=None, epsilon=3.0))
    assert 2.99 < plan.guarantee().epsilon <= 3.0
    assert (plan.steps, plan.denominator, plan.clip.l2_norm) == (5, 10, 0.5)
