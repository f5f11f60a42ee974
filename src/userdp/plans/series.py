"""`Series`: runs that are fixed together beforehand, and composed exactly.

Retraining by the calendar: the same draw, noise and number of steps, twelve times a year. Whatever
a price depends on is fixed before the first run; the rest (clip norm, learning rate, model) may
follow what earlier runs released.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from userdp.accounting.accountants import Accountant
from userdp.accounting.mechanisms import Mixture
from userdp.core.errors import UseError
from userdp.core.vocabulary import Guarantee, require_count
from userdp.plans.frozen_plan import Plan

MOST_RUNS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """A number of runs of one price each, declared before the first.

    Guarantee: everything that all of them release satisfies `guarantee()`, if each run is one that
    `holds` accepts. Their dominating pairs are then fixed in advance, so that they compose as one
    (Zhu, Dong & Wang 2022, Theorem 10), however clip norm, learning rate and model follow earlier
    releases; a run that does not take place is a constant, which every pair dominates. A run whose
    *price* follows an earlier release is none of these. When the runs take place must owe nothing
    to the data: by the calendar, never by counts.

    Args:
        plan: of which each run has sampling, noise, steps and population; ``budget.target_delta``
            is the δ of the whole series.
        runs: how many; at least 1.

    Raises:
        UseError: a number is out of its range, or the plan's price does not compose exactly.
    """

    schema: ClassVar[str] = "userdp.series/1"

    plan: Plan
    runs: int

    def __post_init__(self) -> None:
        require_count("the number of runs", self.runs, at_most=MOST_RUNS)
        require_count("steps of all runs", self.runs * self.plan.steps)
        composes = (
            self.plan.sampling.covered
            and self.plan.accountant is Accountant.CONTOUR
            and isinstance(self.plan.mechanism, Mixture)
        )
        if not composes:
            raise UseError(
                f"runs with sampling {self.plan.sampling.kind} and accountant "
                f"{self.plan.accountant} are no series: only their single prices are known, and "
                "those add up",
                hint="sample users, examples, fixed-cohort or fixed-batch; or fix a "
                "budget for all of them: userdp store budget STORE --epsilon E --delta D",
            )

    def holds(self, plan: Plan) -> bool:
        """Whether a run of this plan may be one of the series: its price was declared."""
        own = self.plan
        return (
            plan.sampling == own.sampling
            and plan.noise == own.noise
            and plan.steps == own.steps
            and plan.population == own.population
            and plan.accountant is own.accountant
        )

    @property
    def in_words(self) -> str:
        """What it is, for a table of parts."""
        return f"a declared series of {self.runs} runs of {self.plan.steps} steps"

    def guarantee(self, *, delta: float | None = None) -> Guarantee:
        """The claim of all runs together, whether or not they took place: they are identical steps.

        Args:
            delta: in (0, 1); ``plan.budget.target_delta`` by default.
        """
        return replace(self.plan, steps=self.runs * self.plan.steps).guarantee(delta=delta)
