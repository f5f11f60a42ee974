"""Plans by the expected size of a step, and the least noise within a budget."""

from __future__ import annotations

from functools import lru_cache

from userdp.accounting import Accountant
from userdp.accounting.accountants import calibrate
from userdp.accounting.mechanisms import binomial_steps
from userdp.noise import Gaussian
from userdp.noise.clip_forms import Clip, ClipForm
from userdp.plans import Budget, Plan
from userdp.sampling import Sampling


def plan_of_size(
    sampling: type[Sampling],
    size: float,
    *,
    population: int,
    group_size: int,
    steps: int,
    l2_clip_norm: float,
    target_delta: float,
    target_epsilon: float | None = None,
    noise_multiplier: float | None = None,
    item_clip_norm: float | None = None,
    clip_form: ClipForm = ClipForm.THRESHOLD,
    accountant: Accountant = Accountant.CONTOUR,
    **bounds: int,
) -> Plan:
    """A plan whose noise is given, or else the least for its budget.

    Args:
        sampling: the kind, such as `userdp.sampling.PoissonUsers`.
        size: users or examples that a step draws, in expectation.
        population: the declared number of users or capped examples.
        group_size: most examples of a user.
        steps: of the plan.
        l2_clip_norm: of a unit.
        target_delta: of the budget.
        target_epsilon: of the budget; needed where the noise is not given.
        noise_multiplier: the noise; calibrated by default.
        item_clip_norm: of each item before; none by default.
        clip_form: how a unit is clipped.
        accountant: prices the plan.
        bounds: on the true population, of samplings that need some.
    """
    plan = Plan(
        sampling=sampling.of_size(size, population=population, group_size=group_size, **bounds),
        clip=Clip(l2_norm=l2_clip_norm, item_norm=item_clip_norm, form=clip_form),
        noise=Gaussian(multiplier=1.0 if noise_multiplier is None else noise_multiplier),
        steps=steps,
        population=population,
        budget=Budget(target_delta=target_delta, target_epsilon=target_epsilon),
        accountant=accountant,
    )
    return plan.calibrated() if noise_multiplier is None else plan


@lru_cache(maxsize=4096)
def least_noise(
    sampling_probability: float, steps: int, epsilon: float, delta: float, group_size: int = 1
) -> float:
    """The least noise multiplier within (ε, δ), to a factor of 1.0001: σ_ELS, or σ_ULS at G = 1."""
    return calibrate(
        binomial_steps(
            sampling_probability=sampling_probability,
            group_size=group_size,
            noise_multiplier=1.0,
            steps=steps,
        ),
        target_epsilon=epsilon,
        target_delta=delta,
        tolerance=1e-4,
    ).noise_multiplier
