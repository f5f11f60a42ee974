"""`Tuning`: how one of several candidates is chosen, and the claim of the chosen one.

The choice of a winner depends on what all candidates learned, so that the winner's price is not
that of its own run. Two ways of choosing have a price: a fixed grid, for the sum of all runs and
scores, and the best of a random number of candidates (`userdp.accounting.private_selection`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from userdp.accounting.accountants import Accountant
from userdp.accounting.bracket import implemented_epsilon
from userdp.accounting.certified_search import least
from userdp.accounting.mechanisms import NoisySteps
from userdp.accounting.private_selection import (
    ACCOUNTANT,
    Repetitions,
    base_curve,
    selection_epsilon,
)
from userdp.accounting.rdp import has_curve
from userdp.core.errors import UseError
from userdp.core.vocabulary import (
    MIXED,
    Adjacency,
    Guarantee,
    PrivacyUnit,
    delta_up,
    epsilon_up,
    require_delta,
    require_positive,
)
from userdp.noise import Gaussian
from userdp.plans.frozen_plan import Budget, Plan

_MOST_FACTOR = 1024.0
_DOWN = 1 - 1e-15


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """The part that both ways of choosing share: plans of candidates, each of which is scored."""

    schema: ClassVar[str] = "userdp.tuning/2"

    plans: tuple[Plan, ...]
    score_epsilon: float

    def __post_init__(self) -> None:
        if not self.plans:
            raise UseError("tuning needs at least one plan, got none")
        for plan in self.plans:
            mechanism_of(plan)
        require_positive("score_epsilon", self.score_epsilon, at_most=700.0)

    def _claim(self, epsilon: float, delta: float, accountant: str) -> Guarantee:
        samplings = {plan.sampling.kind for plan in self.plans}
        return Guarantee(
            epsilon=epsilon,
            delta=delta,
            unit=PrivacyUnit.USER,
            adjacency=Adjacency.ADD_OR_REMOVE,
            sampling=samplings.pop() if len(samplings) == 1 else MIXED,
            accountant=accountant,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedGrid(_Choice):
    """The best of a fixed grid by DP scores: every run and every score is paid.

    Guarantee: `guarantee` covers the release of all candidates' weights and of all scores, and so
    whatever is chosen by them: basic composition (Dwork and Roth 2014, Theorem 3.16) of (ε_i, δ_i)
    that were fixed before the first run.

    Args:
        plans: one for each candidate, twice where candidates share it.
        score_epsilon: each score is (ε, 0)-DP per user, add-or-remove.
    """

    kind: ClassVar[str] = "fixed-grid"

    @property
    def in_words(self) -> str:
        """How the parts were put together."""
        return f"basic composition of {len(self.plans)} candidates' runs and their scores"

    def guarantee(
        self,
        *,
        delta: float | None = None,
        price: Callable[[Plan, float | None], Guarantee] | None = None,
    ) -> Guarantee:
        """The claim of the chosen candidate; each run's own δ by default, or shares of one.

        Args:
            delta: of the whole.
            price: of one run's plan at a share of ``delta``; that of its own accountant by default.
        """
        share = None if delta is None else require_delta(delta) / len(self.plans)
        priced = price or (lambda plan, share: plan.guarantee(delta=share))
        claims = {plan: priced(plan, share) for plan in set(self.plans)}
        parts = [claims[plan] for plan in self.plans]
        return self._claim(
            math.fsum([*(part.epsilon for part in parts), self.score_epsilon * len(self.plans)]),
            min(math.fsum(part.delta for part in parts), math.nextafter(1.0, 0.0)),
            " + ".join(sorted({part.accountant for part in parts} | {"pure"})),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivateSelection(_Choice):
    """The best of a random number of candidates, each drawn anew from a public grid.

    Guarantee: `guarantee` covers only the winner: its weights, settings and score, if the number
    of candidates is from ``repetitions``, each is drawn uniformly and independently, the best
    score wins, and nothing of the others leaves the operator, their number included.

    Args:
        plans: those of the grid, each once.
        score_epsilon: each score is (ε, 0)-DP per user, add-or-remove.
        repetitions: the law of the number of candidates.

    Source: Papernot and Steinke 2022 (arXiv:2110.03620), Theorems 2 and 6.
    """

    kind: ClassVar[str] = "private-selection"

    repetitions: Repetitions

    def __post_init__(self) -> None:
        _Choice.__post_init__(self)
        if len({plan.budget.target_delta for plan in self.plans}) > 1:
            raise UseError("the plans of one private selection need one target delta")

    @property
    def in_words(self) -> str:
        """How the parts were put together."""
        return "private selection from a random number of candidates"

    def guarantee(self, *, delta: float | None = None) -> Guarantee:
        """The claim of the winner.

        Given the number of candidates K, which owes nothing to the data, the real candidates are
        the ideal ones except with probability K times the distance of one; over K, its mean.
        """
        shared = self.plans[0].budget.target_delta
        delta = shared if delta is None else require_delta(delta)
        curve = base_curve(
            [mechanism_of(plan) for plan in self.plans], score_epsilon=self.score_epsilon
        )
        bracket = implemented_epsilon(
            partial(selection_epsilon, curve, self.repetitions),
            delta,
            steps=self.repetitions.mean * max(plan.steps for plan in self.plans),
        )
        return self._claim(bracket.upper, delta, ACCOUNTANT)


Tuning = FixedGrid | PrivateSelection


def divided(
    plans: tuple[Plan, ...], *, epsilon: float, delta: float, score_epsilon: float
) -> FixedGrid:
    """A fixed grid within (``epsilon``, ``delta``): an equal share for each run after the scores.

    Args:
        plans: one for each candidate; their noise is replaced by the least for its share.
        epsilon: of everything together.
        delta: likewise.
        score_epsilon: of each score.

    Raises:
        UseError: the scores leave nothing, or no noise is enough.
    """
    require_positive("epsilon", epsilon)
    require_delta(delta)
    FixedGrid(plans=plans, score_epsilon=score_epsilon)  # refuses plans without a claim
    count = len(plans)
    share = (epsilon - count * score_epsilon) / count * _DOWN
    if not share > 0:
        raise UseError(
            f"{count} scores at epsilon = {epsilon_up(score_epsilon)} cost "
            f"{epsilon_up(count * score_epsilon)} of {epsilon_up(epsilon)}: nothing is left "
            "for training",
            hint="lower --score-epsilon, try fewer candidates, or raise --epsilon",
        )
    budget = Budget(target_delta=delta / count * _DOWN, target_epsilon=share)
    return FixedGrid(
        plans=_with_least_noise([replace(plan, budget=budget) for plan in plans]),
        score_epsilon=score_epsilon,
    )


def selected(
    plans: tuple[Plan, ...],
    *,
    epsilon: float,
    delta: float,
    score_epsilon: float,
    repetitions: Repetitions,
) -> PrivateSelection:
    """A private selection within (``epsilon``, ``delta``), with about the least noise for it.

    Args:
        plans: those of the grid, each once; their noise is replaced.
        epsilon: of the winner's release.
        delta: likewise.
        score_epsilon: of each score.
        repetitions: the law of the number of candidates.

    Raises:
        UseError: no noise is enough: the scores or the choosing alone cost more.
    """
    require_positive("epsilon", epsilon)
    budget = Budget(target_delta=delta, target_epsilon=epsilon)
    # Each has the noise of a run by itself, times a factor that all share.
    alone = _with_least_noise([replace(plan, budget=budget) for plan in plans])
    no_target = Budget(target_delta=delta)

    def louder(factor: float) -> PrivateSelection:
        candidates = []
        for plan in alone:
            noise = Gaussian(multiplier=factor * plan.noise.multiplier)
            candidates.append(replace(plan, noise=noise, budget=no_target))
        return PrivateSelection(
            plans=tuple(candidates), score_epsilon=score_epsilon, repetitions=repetitions
        )

    factor = least(
        lambda value: louder(value).guarantee().epsilon - epsilon,
        start=2.0,
        most=_MOST_FACTOR,
        smallest=1.0,
        relative=1e-3,
    )
    if factor is None:
        raise UseError(
            f"choosing among about {repetitions.mean:.3g} candidates by scores at epsilon = "
            f"{epsilon_up(score_epsilon)} costs more than epsilon = {epsilon_up(epsilon)} at "
            f"delta = {delta_up(delta)}, whatever the noise in training",
            hint="lower --score-epsilon or --mean-trials, or raise --epsilon",
        )
    return louder(factor)


def mechanism_of(plan: Plan) -> NoisySteps:
    """The mechanism of a plan; `UseError` where choosing among such plans has no bound here."""
    covered = (
        plan.sampling.covered
        and plan.accountant is Accountant.CONTOUR
        and has_curve(plan.mechanism)
    )
    if not covered:
        raise UseError(
            f"a choice among plans with sampling {plan.sampling.kind}, adjacency "
            f"{plan.sampling.adjacency} and accountant {plan.accountant} has no claim here",
            hint="plan Poisson samples under add-or-remove adjacency with the accountant contour",
        )
    return plan.mechanism


def _with_least_noise(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Each plan with the least noise for its budget; those with equal draws are searched once."""
    found, noise = [], dict[NoisySteps, Gaussian]()
    for plan in plans:
        draw = mechanism_of(plan).with_noise_multiplier(1.0)
        if draw not in noise:
            noise[draw] = plan.calibrated().noise
        found.append(replace(plan, noise=noise[draw]))
    return tuple(found)
