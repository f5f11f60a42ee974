"""`Series`: runs that are fixed together beforehand, and composed exactly.

Retraining by the calendar: the same draw, noise and number of steps, twelve times a year. Whatever
a price depends on is fixed before the first run; the rest (clip norm, learning rate, model) may
follow what earlier runs released.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from userdp.accounting.accountants import Accountant
from userdp.accounting.bracket import Bracket
from userdp.accounting.calibration import calibrate
from userdp.accounting.implemented import ideal_delta_for, implemented_epsilon
from userdp.accounting.mechanisms import Composition, Mixture, PureQuery
from userdp.accounting.roots import least
from userdp.errors import UseError
from userdp.plans.plan import Plan
from userdp.vocabulary import (
    Guarantee,
    PrivacyUnit,
    delta_up,
    epsilon_up,
    require_count,
    require_delta,
    round_up,
)

MOST_RUNS = 10_000
_LARGEST_NOISE = 1e3  # of a search beside answers; the contour of far more is slow to follow


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """A number of runs of one price each, and DP answers beside them, declared before the first.

    Guarantee: everything that all of them release satisfies `guarantee()`, if each run is one that
    `holds` accepts and each answer one of ``queries``. Their dominating pairs are then fixed in
    advance, so that they compose as one (Zhu, Dong & Wang 2022, Theorem 10), however clip norm,
    learning rate and model follow earlier releases; a run that does not take place is a constant,
    which every pair dominates. A run whose *price* follows an earlier release is none of these.
    When the runs take place must owe nothing to the data: by the calendar, never by counts.

    Args:
        plan: of which each run has sampling, noise, steps and population; ``budget.target_delta``
            is the δ of the whole series.
        runs: how many; at least 1.
        queries: ε of each DP answer of the series.

    Raises:
        UseError: a number is out of its range, or the plan's price does not compose exactly.
    """

    schema: ClassVar[str] = "userdp.series/1"

    plan: Plan
    runs: int
    queries: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require_count("the number of runs", self.runs, at_most=MOST_RUNS)
        require_count("steps of all runs", self.runs * self.plan.steps)
        for pure_epsilon in self.queries:
            PureQuery(pure_epsilon=pure_epsilon)
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
        answers = f" and {len(self.queries)} DP answers" if self.queries else ""
        return f"a declared series of {self.runs} runs of {self.plan.steps} steps{answers}"

    @property
    def steps(self) -> int:
        """Noisy steps of all runs together."""
        return self.runs * self.plan.steps

    @property
    def mechanism(self) -> Mixture:
        """All runs as one: they are identical steps."""
        one = self.plan.mechanism
        assert isinstance(one, Mixture)
        return one.with_steps(self.steps)

    def guarantee(self, *, delta: float | None = None) -> Guarantee:
        """The claim of all runs and answers together, whether or not they took place.

        Args:
            delta: in (0, 1); ``plan.budget.target_delta`` by default.
        """
        delta = self.plan.budget.target_delta if delta is None else require_delta(delta)
        bracket = implemented_epsilon(self._ideal, delta, steps=self.steps)
        return Guarantee(
            epsilon=bracket.upper,
            delta=delta,
            unit=PrivacyUnit.USER,
            adjacency=self.plan.sampling.adjacency,
            sampling=self.plan.sampling.kind,
            accountant=bracket.accountant,
        )

    def _ideal(self, delta: float) -> Bracket:
        if not self.queries:
            return self.mechanism.epsilon(delta)
        return Composition(parts=(self.mechanism, *self._answers)).epsilon(delta)

    @property
    def _answers(self) -> tuple[PureQuery, ...]:
        return tuple(PureQuery(pure_epsilon=one) for one in self.queries)

    def calibrated(self) -> Self:
        """This series with about the least noise for its plan's ``target_epsilon``.

        Raises:
            UseError: there is no target, or no noise is enough: the answers alone cost more.
        """
        target = self.plan.budget.target_epsilon
        if target is None:
            raise UseError("a series without a target_epsilon has no budget to choose its noise by")
        if not self.queries:
            ideal = ideal_delta_for(target, self.plan.budget.target_delta, steps=self.steps)
            found = calibrate(self.mechanism, target_epsilon=target, target_delta=ideal)
            return self._with(found.noise_multiplier)
        answers = Composition(parts=self._answers).epsilon(self.plan.budget.target_delta)
        if answers.lower >= target:
            raise UseError(
                f"the answers of this series cost epsilon = {round_up(answers.upper)} by "
                f"themselves at delta = {delta_up(self.plan.budget.target_delta)}: no noise in "
                f"training keeps it within {epsilon_up(target)}",
                hint="ask less, or raise --epsilon",
            )
        noise = least(
            lambda value: self._with(value).guarantee().epsilon - target,
            start=self.plan.noise.multiplier,
            most=_LARGEST_NOISE,
            smallest=1e-3,
            relative=1e-4,
        )
        if noise is None:
            raise UseError(
                f"no noise multiplier up to {_LARGEST_NOISE:g} keeps this series within epsilon = "
                f"{epsilon_up(target)}: its answers leave next to nothing",
                hint="ask less, or raise --epsilon",
            )
        return self._with(noise)

    def _with(self, noise_multiplier: float) -> Self:
        noise = replace(self.plan.noise, multiplier=noise_multiplier)
        return replace(self, plan=replace(self.plan, noise=noise))
