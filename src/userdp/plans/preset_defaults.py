"""`preset`: every constant of a run from its budget and the declared population, by public rules.

Nothing here reads a store, so that the constants are declared ones (`userdp.plans.provenance`).
`userdp plan` begins with the same rules; gradient norms choose only what the rules leave open
(`userdp.plans.planner`).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from userdp.core.errors import UseError
from userdp.core.vocabulary import (
    delta_up,
    epsilon_up,
    require_count,
    require_delta,
    require_positive,
)
from userdp.plans.frozen_plan import Plan
from userdp.plans.small_delta import delta_for

# Source: a simulated grid on public text, models up to 3 M parameters: docs/results/recipe.md.
_STEPS = {400: 100, 0: 50}
"""T by the least ε √population."""
_COHORTS = (16, 4096)
_GRADIENTS = 800
"""Examples that all steps draw, in parts of the population's root."""
_GROUP_SIZES = {150: 1, 50: 2, 0: 4}
"""G by the least ε √population."""
_RATES = {50: 2e-3, 0: 3e-3}
"""The first learning rate of full fine-tuning by the least ε √population."""
_CLIP_NORM = 0.1

MOST_NOISE = 0.1
"""The most noise per coordinate of a step's mean, in parts of the clip norm.

Beyond it even a step in which every gradient points the same way has, in that one direction, a
signal of less than ten standard deviations of the noise; real gradients agree far less.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """The constants of a run by user-level sampling (ULS), none of which a store was asked for.

    Args:
        epsilon: the budget, > 0.
        delta: in (0, 1).
        population: the declared nominal number of users.
        kind: "full fine-tuning" or "LoRA".
        group_size: G, 1 where ε √population is at least 150, 2 from 50, else 4. A step costs M G
            gradients. The mean of four examples of a user points 1.4 to 1.75 times as far to the
            mean of all users as one example; four times as many users divide the noise σ / M by
            more than that, up to 4, unless noise is so large or people so few that σ grows nearly
            as M.
        cohort_size: M, so that M G is the power of two nearest to 800 √population / T; from 16 to
            4,096, and at most half of the population.
        steps: T, 100 where ε √population is at least 400, else 50. The accountant needs the least
            noise, in σ / (M √T), with few steps of many users, and where noise is little more steps
            teach more.
        l2_clip_norm: C, 0.1. Gradients of language models are longer (2 to 9 in all models
            measured), so that each user counts alike whatever the model's scale; the optimizer
            divides C out again.
        learning_rate: the first, without warm-up or decay: that of `learning_rate_for`, and 0.003
            for full fine-tuning where ε √population is below 50.
    """

    epsilon: float
    delta: float
    population: int
    kind: str
    group_size: int
    cohort_size: int
    steps: int
    l2_clip_norm: float
    learning_rate: float

    def sentence(self, given: Collection[str] = ()) -> str:
        """The announcement before training; empty where the preset chose nothing.

        Args:
            given: fields that the operator chose, which the preset did not.
        """
        words = {
            "group_size": f"group size {self.group_size}",
            "cohort_size": f"{self.cohort_size} users a step",
            "steps": f"{self.steps} steps",
            "l2_clip_norm": f"clip norm {self.l2_clip_norm:g}",
            "learning_rate": f"learning rate {self.learning_rate:g} at first",
            "delta": f"delta {delta_up(self.delta, 2)} (population^-1.1)",
        }
        chosen = ", ".join(word for name, word in words.items() if name not in given)
        return chosen and (
            f"The preset chose {chosen}, without a look at the store: from epsilon "
            f"{epsilon_up(self.epsilon)}, a declared population of {self.population:,} and "
            f"{self.kind} only."
        )


def learning_rate_for(*, low_rank: bool) -> float:
    """The first learning rate where neither operator nor preset gives one: 0.002, adapters 0.008.

    Adam divides the noise out, so that the rate hangs little on σ / M. From the second step on it
    follows the noisy gradients
    (`userdp.training.optimizers.following_factor`).
    """
    return 8e-3 if low_rank else 2e-3


def preset(
    *, epsilon: float, population: int, delta: float | None = None, low_rank: bool = False
) -> Preset:
    """The preset for a budget.

    Guarantee: equal arguments give equal constants; nothing else enters them.

    Args:
        epsilon: finite, > 0.
        population: the declared nominal number of users: a public constant, never a count.
        delta: in (0, 1); population^-1.1 by default, which is below 1/population.
        low_rank: adapters are trained, not all weights.

    Raises:
        UseError: an argument is out of range, or so few people are declared that no default for
            delta says much.

    >>> chosen = preset(epsilon=4, population=20_000)
    >>> chosen.group_size, chosen.cohort_size, chosen.steps, chosen.l2_clip_norm
    (1, 1024, 100, 0.1)
    >>> chosen.learning_rate, preset(epsilon=1, population=2_000).learning_rate
    (0.002, 0.003)
    """
    require_positive("epsilon", epsilon)
    require_count("population", population, at_least=2)
    root = math.sqrt(population)
    group_size, steps = (
        next(value for least, value in rule.items() if epsilon * root >= least)
        for rule in (_GROUP_SIZES, _STEPS)
    )
    rate = next(value for least, value in _RATES.items() if epsilon * root >= least)
    gradients = 2 ** round(math.log2(_GRADIENTS * root / steps))
    least, most = _COHORTS
    half = 2 ** math.floor(math.log2(population / 2))
    return Preset(
        epsilon=epsilon,
        delta=delta_for(population) if delta is None else require_delta(delta),
        population=population,
        kind="LoRA" if low_rank else "full fine-tuning",
        group_size=group_size,
        cohort_size=min(most, max(least, gradients // group_size), half),
        steps=steps,
        l2_clip_norm=_CLIP_NORM,
        learning_rate=learning_rate_for(low_rank=True) if low_rank else rate,
    )


def require_signal(plan: Plan, *, most_noise: float = MOST_NOISE) -> None:
    """Refuse a plan whose noise hides what its people have in common.

    Args:
        plan: with its noise.
        most_noise: on a coordinate of a step's mean, in parts of the clip norm.

    Raises:
        UseError: there is more noise than that; the hint names the ε at which there would not be.
    """
    noise = plan.sum_noise_multiplier / plan.denominator
    if noise <= most_noise:
        return
    allowed = replace(plan.noise, multiplier=plan.noise.multiplier * most_noise / noise)
    enough = replace(plan, noise=allowed).guarantee().epsilon
    units = "users" if plan.sampling.by_user else "examples"
    raise UseError(
        f"within epsilon = {epsilon_up(plan.budget.target_epsilon or math.inf)} (delta = "
        f"{delta_up(plan.budget.target_delta)}) for training, {plan.steps} steps of "
        f"{plan.denominator:.5g} {units} need σ = {plan.noise.multiplier:.4g}: the noise on each "
        f"coordinate of a step's mean is {noise:.3g} of the clip norm, more than {most_noise:g}. "
        "The people would be charged, and next to nothing would be learned",
        hint=f"epsilon {epsilon_up(enough * 1.001, 3)} for training would do with these numbers; "
        "or raise --cohort-size (of plan, --budget), lower --steps, or hold a store of more people",
    )
