"""`Setting`: all that tells one trained model of a study from another, but its learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from papers.sized import plan_of_size
from userdp.accounting import Accountant
from userdp.clip import ClipForm
from userdp.data.strategy import Strategy
from userdp.errors import UseError
from userdp.plans import Plan
from userdp.sampling import (
    FixedSizeExamples,
    FixedSizeUsers,
    PoissonExamples,
    PoissonUsers,
    Sampling,
)
from userdp.training.config import Averaging, OptimizerName, Schedule, TrainConfig
from userdp.vocabulary import PrivacyUnit, require_count, require_positive

NOISELESS = 1e-3
"""Noise multiplier of a run "without privacy": the same algorithm, and no ε is told."""


class Method(StrEnum):
    """The algorithms that are compared."""

    ULS = "uls"
    ELS = "els"
    GROUP_PRIVACY = "group-privacy"
    GROUP_PRIVACY_VADHAN = "group-privacy-vadhan"
    FIXED_USERS = "fixed-users"
    FIXED_EXAMPLES = "fixed-examples"

    @property
    def sampling(self) -> type[Sampling]:
        """How a step draws."""
        return _SAMPLINGS.get(self, PoissonExamples)

    @property
    def accountant(self) -> Accountant:
        """What prices it."""
        return _ACCOUNTANTS.get(self, Accountant.CONTOUR)


_SAMPLINGS: Mapping[Method, type[Sampling]] = {
    Method.ULS: PoissonUsers,
    Method.FIXED_USERS: FixedSizeUsers,
    Method.FIXED_EXAMPLES: FixedSizeExamples,
}
_ACCOUNTANTS = {
    Method.GROUP_PRIVACY: Accountant.GROUP_PRIVACY,
    Method.GROUP_PRIVACY_VADHAN: Accountant.GROUP_PRIVACY_VADHAN,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """What is declared of a text: constants of its plans.

    Args:
        users: the population of users.
        examples: the population of examples after a cap of G, by G.
        least_users: of samplings of a fixed size, a lower bound on the users.
        least_examples: the same of the examples after a cap of G, by G.
    """

    users: int
    examples: Mapping[str, int]
    least_users: int
    least_examples: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One trained model of a study.

    Args:
        text: the name of a text.
        base: the name of a base model.
        method: the algorithm.
        epsilon: the budget; None trains with `NOISELESS` noise.
        group_size: G, or k.
        gradients: B, gradients of examples that a step expects at most; M = B / G users under ULS.
        steps: T.
        delta: of the budget.
        clip_norm: of a unit. Under normalized clipping and Adam it moves nothing.
        clip_form: how a unit is clipped.
        selection: which of a user's examples are taken.
        optimizer: of the noisy gradients.
        averaging: of the weights.
        lora_rank: adapters in place of all weights.
        population_factor: so many times more users stand in the accounting than there are (Charles
            et al. 2024, Figure 8). What is trained then costs more than ``epsilon``; the row tells
            both.
        personalized: measure what held-out users gain from local training, too.
    """

    text: str
    method: Method
    epsilon: float | None
    group_size: int
    gradients: float
    steps: int
    base: str = "docstrings"
    delta: float = 1e-5
    clip_norm: float = 1.0
    clip_form: ClipForm = ClipForm.NORMALIZED
    selection: Strategy = Strategy.RANDOM
    optimizer: OptimizerName = OptimizerName.ADAMW
    averaging: Averaging = Averaging.NONE
    lora_rank: int | None = None
    population_factor: int = 1
    personalized: bool = False

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            require_positive("epsilon", self.epsilon)
        require_count("group_size", self.group_size)
        require_count("steps", self.steps)
        require_count("population_factor", self.population_factor)
        require_positive("gradients", self.gradients)

    @property
    def units(self) -> float:
        """Users (ULS) or examples that a step expects."""
        return self.gradients / self.group_size if self.by_user else self.gradients

    @property
    def by_user(self) -> bool:
        """Whether a unit is a user."""
        return self.method.sampling.unit is PrivacyUnit.USER

    def plan(self, declared: Declared) -> Plan:
        """The private plan; its noise is the least for the budget.

        Raises:
            UseError: a step expects more units than there are, or nothing is declared of this G.
        """
        population, least = declared.users, declared.least_users
        if not self.by_user:
            population = _of(declared.examples, self.group_size)
            least = _of(declared.least_examples, self.group_size)
        fixed = self.method in (Method.FIXED_USERS, Method.FIXED_EXAMPLES)
        bounds: dict[str, Any] = {"least_population": least} if fixed else {}
        common: dict[str, Any] = {
            "group_size": self.group_size,
            "steps": self.steps,
            "l2_clip_norm": self.clip_norm,
            "clip_form": self.clip_form,
            "target_delta": self.delta,
            "accountant": self.method.accountant,
        }

        def sized(factor: int, epsilon: float | None, noise: float | None) -> Plan:
            return plan_of_size(
                self.method.sampling,
                self.units,
                population=population * factor,
                target_epsilon=epsilon,
                noise_multiplier=noise,
                **common,
                **bounds,
            )

        if self.epsilon is None:
            return sized(1, None, NOISELESS)
        priced = sized(self.population_factor, self.epsilon, None)
        if self.population_factor == 1:
            return priced
        return sized(1, None, priced.noise.multiplier)

    def config(self, model: str, learning_rate: float) -> TrainConfig:
        """Everything that privacy does not depend on."""
        return TrainConfig(
            model=model,
            learning_rate=learning_rate,
            warmup_steps=5,
            schedule=Schedule.LINEAR,
            optimizer=self.optimizer,
            averaging=self.averaging,
            averaging_decay=0.9,
            lora_rank=self.lora_rank,
            selection=self.selection,
            micro_batch=16,
            checkpoint_every=self.steps,
            checkpoint_seconds=1e6,
        )


def _of(counts: Mapping[str, int], group_size: int) -> int:
    try:
        return counts[str(group_size)]
    except KeyError:
        raise UseError(
            f"the design declares no number of examples for a group size of {group_size}",
            hint="add it to the design's table of declared examples",
        ) from None
