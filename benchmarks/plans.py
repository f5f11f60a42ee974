"""Plans of the papers' samplings, by the expected size of a step."""

from __future__ import annotations

from userdp.accounting import Accountant
from userdp.clip import Clip, ClipForm
from userdp.noise import Gaussian
from userdp.plans import Budget, Plan
from userdp.sampling import poisson
from userdp.vocabulary import PrivacyUnit


def poisson_plan(
    unit: PrivacyUnit,
    size: float,
    *,
    population: int,
    group_size: int,
    steps: int,
    l2_clip_norm: float,
    target_delta: float,
    target_epsilon: float | None = None,
    noise_multiplier: float | None = None,
    accountant: Accountant = Accountant.CONTOUR,
    clip_form: ClipForm = ClipForm.THRESHOLD,
) -> Plan:
    """ULS of users or ELS of examples; with the noise given, else the least for the budget."""
    plan = Plan(
        sampling=poisson(unit).of_size(size, population=population, group_size=group_size),
        clip=Clip(l2_norm=l2_clip_norm, form=clip_form),
        noise=Gaussian(multiplier=1.0 if noise_multiplier is None else noise_multiplier),
        steps=steps,
        population=population,
        budget=Budget(target_delta=target_delta, target_epsilon=target_epsilon),
        accountant=accountant,
    )
    return plan.calibrated() if noise_multiplier is None else plan
