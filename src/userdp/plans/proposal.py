"""`Proposal`: a plan with its prediction, the reason for it, and the candidates beside it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from userdp.core.codec import encode
from userdp.core.errors import UseError
from userdp.core.files import OPERATOR_FILE, SHAREABLE_FILE, read_json, write_json
from userdp.core.vocabulary import epsilon_up, require_delta, require_positive
from userdp.plans.frozen_plan import PROPOSAL_SCHEMA, Plan
from userdp.plans.gradient_norms import GradientNorms
from userdp.plans.provenance import Constant, Release, in_words, uncovered


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacyBudget:
    """A total (ε, δ), the DP answers before the plan, and the rest of it for training.

    Guarantee: the releases together with a mechanism that is
    (``training_epsilon``, ``delta``)-DP are (``epsilon``, ``delta``)-DP by basic composition
    (Dwork and Roth 2014, Theorem 3.16), which holds for parameters chosen after seeing the releases
    since each ε_i was fixed before.

    Args:
        epsilon: of everything together, > 0.
        delta: of everything together, in (0, 1).
        releases: the DP answers before the plan, each once, whether or not the plan uses them.

    Raises:
        UseError: the releases leave nothing for training.
    """

    epsilon: float
    delta: float
    releases: tuple[Release, ...] = ()

    def __post_init__(self) -> None:
        require_positive("epsilon", self.epsilon)
        require_delta(self.delta)
        if not self.training_epsilon > 0:
            parts = ", ".join(f"{one.name} {epsilon_up(one.epsilon)}" for one in self.releases)
            raise UseError(
                f"the DP answers before this plan cost epsilon = {epsilon_up(self.query_epsilon)} "
                f"({parts}), the whole budget is {epsilon_up(self.epsilon)}: nothing is left for "
                "training",
                hint="raise --epsilon: a later claim counts each of them, whether or not the plan "
                "takes a number from it",
            )

    @property
    def query_epsilon(self) -> float:
        """Σ ε_i of the releases."""
        return math.fsum(release.epsilon for release in self.releases)

    @property
    def training_epsilon(self) -> float:
        """The ε of training; rounded down, so that the sum stays within the total."""
        left = self.epsilon - self.query_epsilon
        return left * (1 - 1e-15) if self.releases else left


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """The answer of `userdp plan`.

    Guarantee: ``plan.guarantee()`` is within the training share of ``budget``; with the releases
    that came before, everything is within (``budget.epsilon``, ``budget.delta``). Constants of
    origin ``non-private`` are covered by none of it.

    Args:
        plan: frozen; `userdp train --plan` runs it.
        budget: the total and its split.
        compute: B of the request, gradients per step.
        prediction: numbers that the plan is expected to have, by name.
        reason: why this plan, in words.
        constants: where each constant comes from.
        norms: the gradient norms behind it; None where the preset's rules chose.
        candidates: configurations at the same T and B, each in numbers: M users or B examples a
            step (``units``), σ, the noise on each coordinate of a step's mean, and that in parts of
            the least.
        notes: what else the operator should know.
    """

    schema: ClassVar[str] = PROPOSAL_SCHEMA

    plan: Plan
    budget: PrivacyBudget
    compute: float
    prediction: Mapping[str, Any]
    reason: str
    constants: tuple[Constant, ...]
    norms: GradientNorms | None
    candidates: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...] = ()

    @property
    def basis(self) -> str:
        """The statistics behind the plan, in words; kept with the run and shown in its report."""
        return in_words(self.plan.origins)

    @property
    def operator_only(self) -> bool:
        """Whether the plan rests on an exact number of people's text, which no ε covers."""
        return uncovered(self.plan.origins)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for the file and for ``--json``."""
        values: dict[str, Any] = encode(self)
        values["budget"]["query_epsilon"] = self.budget.query_epsilon
        values["budget"]["training_epsilon"] = self.budget.training_epsilon
        return {**values, "basis": self.basis}

    def rows(self) -> list[dict[str, Any]]:
        """One for each candidate."""
        return [{"candidate": name, **one} for name, one in self.candidates.items()]

    def save(self, path: Path) -> None:
        """Write as JSON, whole or not at all; for its owner only where it holds private numbers."""
        mode = OPERATOR_FILE if self.operator_only else SHAREABLE_FILE
        write_json(path, self.to_dict(), mode=mode)


def declared_users(given: object) -> int | None:
    """The number of users that a proposal's constants name, or those in its file; None without.

    A plan of examples counts those. Where it was made from a number of users, that stands beside.
    """
    constants: Any = ()
    if isinstance(given, Proposal):
        constants = encode(given.constants)
    elif isinstance(given, str | os.PathLike):
        constants = read_json(Path(given), what="a plan").get("constants", ())
    for constant in constants:
        if constant["name"] == "population" and constant["value"] is not None:
            return int(constant["value"])
    return None


def as_plan(given: object) -> Plan:
    """The plan itself, wherever one is taken: a `Plan`, what `userdp.plan` answered, or a file.

    Raises:
        UseError: it is none of these, or the file is none of `userdp plan` or `Plan.save`.
    """
    if isinstance(given, str | os.PathLike):
        return Plan.load(Path(given))
    plan = given.plan if isinstance(given, Proposal) else given
    if not isinstance(plan, Plan):
        raise UseError(
            f"a plan is needed, and a {type(given).__name__} is none",
            hint="give what userdp.plan answered, a userdp.Plan, or the file that either wrote",
        )
    return plan
