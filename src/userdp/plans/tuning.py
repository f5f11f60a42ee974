"""`Tuning`: how one of several candidates is chosen, and what the chosen one claims.

A winner was chosen by what all candidates learned, so its price is not that of its own run. Two
ways have one: a fixed grid, all of whose runs and scores are added up, and the best of a random
number of candidates (`userdp.accounting.private_selection`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, cast

from userdp.accounting.accountants import Accountant, calibrate_by
from userdp.accounting.implemented import ideal_delta_for, implemented_epsilon
from userdp.accounting.mechanisms import NoisySteps
from userdp.accounting.private_selection import (
    ACCOUNTANT,
    base_curve,
    has_curve,
    selection_epsilon,
)
from userdp.accounting.repetitions import Repetitions
from userdp.accounting.roots import least
from userdp.codec import decode
from userdp.errors import UseError
from userdp.noise.gaussian import Gaussian
from userdp.plans.plan import Budget, Plan
from userdp.vocabulary import (
    MIXED,
    Adjacency,
    Guarantee,
    PrivacyUnit,
    delta_up,
    epsilon_up,
    require_delta,
    require_positive,
)

SCHEMA = "userdp.tuning/2"
_LARGEST_NOISE = 1e6
_DOWN = 1 - 1e-15


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """What both ways of choosing share: candidates' plans, each of which is scored."""

    schema: ClassVar[str] = SCHEMA

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
        if price is None:
            claims = {plan: plan.guarantee(delta=share) for plan in set(self.plans)}
        else:
            claims = {plan: price(plan, share) for plan in set(self.plans)}
        parts = [claims[plan] for plan in self.plans]
        scores = self.score_epsilon * len(self.plans)
        return self._claim(
            math.fsum([*(part.epsilon for part in parts), scores]),
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


def tuning_from(values: Any) -> Tuning:
    """A tuning from plain values; `UseError` if they are none.

    Of a private selection they hold the law of the number of candidates, never the number.
    """
    return cast("Tuning", decode(cast("Any", Tuning), values, what="the tuning"))


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
    FixedGrid(plans=plans, score_epsilon=score_epsilon)  # refuses what none can be made of
    count = len(plans)
    share = (epsilon - count * score_epsilon) / count * _DOWN
    if not share > 0:
        raise UseError(
            f"{count} scores at epsilon = {epsilon_up(score_epsilon)} cost "
            f"{epsilon_up(count * score_epsilon)} of {epsilon_up(epsilon)}: nothing is left "
            "for training",
            hint="lower --score-epsilon, try fewer candidates, or raise --epsilon",
        )
    part = delta / count * _DOWN

    def least_noise(plan: Plan) -> float:
        return calibrate_by(
            plan.accountant,
            mechanism_of(plan),
            target_epsilon=share,
            target_delta=ideal_delta_for(share, part, steps=plan.steps),
        ).noise_multiplier

    noise = _by_draws(plans, least_noise)
    budget = Budget(target_delta=part, target_epsilon=share)
    return FixedGrid(
        plans=tuple(
            replace(with_noise(plan, noise[_draws(plan)]), budget=budget) for plan in plans
        ),
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
    plain = [replace(plan, budget=Budget(target_delta=delta)) for plan in plans]

    def within(noisy: list[Plan]) -> bool:
        chosen = PrivateSelection(
            plans=tuple(noisy), score_epsilon=score_epsilon, repetitions=repetitions
        )
        return chosen.guarantee().epsilon <= epsilon

    if not within([with_noise(plan, _LARGEST_NOISE) for plan in plain]):
        raise UseError(
            f"choosing among about {repetitions.mean:.3g} candidates by scores at epsilon = "
            f"{epsilon_up(score_epsilon)} costs more than epsilon = {epsilon_up(epsilon)} at "
            f"delta = {delta_up(delta)}, whatever the noise in training",
            hint="lower --score-epsilon or --mean-trials, or raise --epsilon",
        )
    noise = _by_draws(plain, partial(_least_noise, within=within))
    factor = 1.0  # the worst plan may be another one at each order
    while True:
        noisy = [with_noise(plan, factor * noise[_draws(plan)]) for plan in plain]
        if within(noisy):
            return PrivateSelection(
                plans=tuple(noisy), score_epsilon=score_epsilon, repetitions=repetitions
            )
        factor *= 1.005


def with_noise(plan: Plan, multiplier: float) -> Plan:
    """The plan with other noise."""
    return replace(plan, noise=Gaussian(multiplier=multiplier))


def mechanism_of(plan: Plan) -> NoisySteps:
    """What the accountant prices; `UseError` where choosing among such plans has no bound here."""
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


def _draws(plan: Plan) -> NoisySteps:
    """A plan's sampler and steps: plans that differ only in their clipping need the same noise."""
    return mechanism_of(plan).with_noise_multiplier(1.0)


def _by_draws(
    plans: Sequence[Plan], least_noise: Callable[[Plan], float]
) -> dict[NoisySteps, float]:
    """The noise of each sampler and steps, searched once, for the first plan that has them."""
    first = {_draws(plan): plan for plan in reversed(plans)}
    return {draws: least_noise(plan) for draws, plan in first.items()}


def _least_noise(plan: Plan, *, within: Callable[[list[Plan]], bool]) -> float:
    """About the least noise of ``plan`` for which ``within`` holds of this plan by itself."""
    noise = least(
        lambda value: not within([with_noise(plan, value)]),
        start=plan.noise.multiplier,
        most=_LARGEST_NOISE,
        smallest=1e-3,
        relative=1e-3,
    )
    return _LARGEST_NOISE if noise is None else noise
