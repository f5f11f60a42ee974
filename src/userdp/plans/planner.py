"""`propose`: from a privacy budget and public constants to a plan, and why it was chosen.

The rules of `userdp.plans.preset_defaults` choose every number that is not given. Where gradient
norms are known, they decide between users and examples, and choose the group size and the clip
norm. Without norms the plan is the preset's, to the last digit.

**What is compared.** With L the typical norm of what is clipped, the noise on each coordinate of a
step's mean is σ L / M for users and σ L / B for examples (Charles et al. 2024, Equations 5 and 6).
Problem (10) minimises that noise over G M = B. Estimate-and-Double (Algorithm 3) doubles G or M,
whichever lowers the noise more, until G M = B, and so ends at some power of two for G. Here σ is
computed at every end that it may reach, G = 1, 2, 4, … as measured, so that the best of them is at
least as good.

Nothing but arithmetic: no store is read and no model loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from userdp.core.errors import UseError, warn
from userdp.core.vocabulary import require_count, require_positive
from userdp.noise import Gaussian
from userdp.noise.clip_forms import Clip
from userdp.plans.frozen_plan import Budget, Plan
from userdp.plans.gradient_norms import GradientNorms, require_informative
from userdp.plans.preset_defaults import MOST_NOISE, preset, require_signal
from userdp.plans.proposal import PrivacyBudget, Proposal
from userdp.plans.provenance import Constant, Provenance, Release, origins_of
from userdp.plans.small_delta import delta_for, require_small_delta
from userdp.sampling import PoissonExamples, PoissonUsers, Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A request to the planner: the goals, and the numbers that are known.

    Args:
        epsilon: of training and of all DP answers before it, as the run's claim counts them;
            earlier runs are added to that, and said.
        steps: T, noisy updates; the preset's by default.
        budget: B, gradients per step, in expectation; the preset's M G by default.
        norms: gradient norms, as numbers; without them the preset's rules choose.
        delta: of everything, in (0, 1); by default n^-1.1 of the declared examples, or users.
        population: the declared nominal number of users: a public constant that you choose.
        population_examples: the declared nominal number of examples of all users together, before
            any cap; for ELS. Without it every user is taken to hold as many as the cap.
        median_examples: the declared median of examples per user: the group size of ELS (Charles et
            al. 2024, Section 6), which cannot be chosen without.
        releases: the DP answers before the plan; the newest takes the place of a number that is
            not declared.
        algorithm: auto takes the one that adds less noise.
        l2_clip_norm: by default the typical norm of the clipped gradients: L_ULS(G) or L_ELS
            (Charles et al. 2024, Section 3); without norms the preset's.
        most_noise: refuse plans with more noise than this on a coordinate of a step's mean, in
            parts of the clipped gradients' norm.
        allow_large_delta: plan even where delta is not below 1 over the number of users.
    """

    epsilon: float
    steps: int | None = None
    budget: float | None = None
    norms: GradientNorms | None = None
    delta: float | None = None
    population: int | None = None
    population_examples: int | None = None
    median_examples: int | None = None
    releases: tuple[Release, ...] = ()
    algorithm: Literal["auto", "uls", "els"] = "auto"
    l2_clip_norm: float | None = None
    most_noise: float = MOST_NOISE
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        require_positive("most_noise", self.most_noise)
        if self.algorithm not in ("auto", "uls", "els"):
            raise UseError(f"algorithm must be auto, uls or els, got {self.algorithm!r}")
        if self.budget is not None and not 1 <= self.budget < math.inf:
            raise UseError(
                f"budget must be finite and at least 1, got {self.budget!r}: a step computes at "
                "least one gradient",
                hint="give --budget in gradients per step, for instance --budget 64",
            )
        if self.norms is None:
            return
        require_informative(self.norms.users, self.norms.rank_error)
        if self.norms.ledger_line not in (None, *(one.query_id for one in self.releases)):
            raise UseError(
                f"the norms name the ledger line {self.norms.ledger_line}, and the store's ledger "
                "has no such query: what they cost is unknown",
                hint="use the norms with the store that they were released from",
            )

    def constants(self) -> dict[str, Constant]:
        """Each constant from its declaration, else the newest DP answer, else the norms.

        Raises:
            UseError: no population is known, or a number is out of its range.
        """
        known: dict[str, Constant] = {}
        measured = None if self.norms is None else self.norms.median_examples_per_user
        for name, declared, asked in (
            ("population", self.population, ("users",)),
            ("population examples", self.population_examples, ()),
            ("median examples per user", self.median_examples, ("median", "p50")),
        ):
            answers = [one for one in self.releases if one.name in asked and one.value is not None]
            value, origin, line = declared, Provenance.DECLARED, None
            if declared is None and answers:
                newest = answers[-1]
                value, origin, line = newest.value, Provenance.DP_RELEASE, newest.query_id
            elif declared is None and "median" in asked and self.norms is not None:
                value, origin = measured, self.norms.source
            if value is not None:
                require_count(name if line is None else f"DP {name}", value)
                known[name] = Constant(name=name, value=value, origin=origin, query_id=line)
        if "population" not in known:
            raise UseError(
                "the plan needs a population: the sampling probability and every denominator are "
                "made of it, and the store's own count is private",
                hint="declare a nominal number of users with --population, or release it under DP "
                "first, as a share of the budget: `userdp store stats STORE "
                f"--epsilon {0.05 * self.epsilon!r} --ask users --ask median`",
            )
        return known

    def privacy(self, users: int) -> PrivacyBudget:
        """The total, and its share for training after the answers before the plan.

        Raises:
            UseError: nothing is left; δ is not declared and cannot be derived, or is too large.
        """
        delta, n = self.delta, self.population_examples or self.population
        if delta is None and n is None:
            raise UseError(
                "delta is n^-1.1 only for a declared n: it must be fixed before any private look",
                hint="give --delta, or declare --population",
            )
        delta = delta_for(n or 0) if delta is None else delta
        warn(
            require_small_delta(
                delta, users, counted="users", allow_large_delta=self.allow_large_delta
            )
        )
        return PrivacyBudget(epsilon=self.epsilon, delta=delta, releases=self.releases)


def propose(request: Request) -> Proposal:
    """The best plan within a privacy and a compute budget, its prediction, and the reason for it.

    Guarantee: as `Proposal`. It is a function of the request alone.

    Raises:
        UseError: the budget cannot be met or used; the hint names the nearest that can.
    """
    known = request.constants()
    numbers = {name: int(one.value or 0) for name, one in known.items()}
    users, examples = numbers["population"], numbers.get("population examples")
    median = numbers.get("median examples per user")
    privacy, norms = request.privacy(users), request.norms
    rules = preset(epsilon=privacy.training_epsilon, population=users, delta=privacy.delta)
    gradients = request.budget or rules.cohort_size * rules.group_size

    def candidate(
        sampling: type[Sampling], size: float, population: int, group_size: int, norm: float
    ) -> Plan:
        """The plan with the least noise for the budget; its clip norm is L."""
        plan = Plan(
            sampling=sampling.of_size(size, population=population, group_size=group_size),
            clip=Clip(l2_norm=norm),
            noise=Gaussian(multiplier=1.0),
            steps=rules.steps if request.steps is None else request.steps,
            population=population,
            budget=Budget(target_delta=privacy.delta, target_epsilon=privacy.training_epsilon),
        )
        return plan.calibrated()

    by_rule = min(rules.group_size, math.floor(gradients))
    by_size = {by_rule: rules.l2_clip_norm} if norms is None else norms.user_norms
    candidates = {
        f"ULS, G = {size}": candidate(PoissonUsers, min(gradients / size, users), users, size, norm)
        for size, norm in by_size.items()
        if size <= gradients
    }
    uls, els = min(candidates.values(), key=_noise), None
    # The declared number of examples when each user gives at most the median.
    capped = min(users * (median or 0), examples or math.inf)
    if norms is not None and median is not None and gradients <= capped:
        els = candidate(PoissonExamples, gradients, int(capped), median, norms.example_norm)
        candidates["ELS, median rule"] = els
    best, reason = _choice(request, uls, els, knows_median=median is not None)
    require_signal(best, most_noise=request.most_noise)
    plan, rests_on = _with_origins(request, best, known)
    guarantee = plan.guarantee()
    assert guarantee.epsilon <= privacy.training_epsilon
    computed = plan.denominator * (plan.sampling.group_size if plan.sampling.by_user else 1)
    return Proposal(
        plan=plan,
        budget=privacy,
        compute=gradients,
        prediction={
            "algorithm": plan.algorithm,
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "accountant": guarantee.accountant,
            "noise_std_per_gradient": _noise(plan),
            "noise_to_signal": plan.sum_noise_multiplier / plan.denominator,
            "gradients_per_step": computed,
            "gradients": computed * plan.steps,
            "noise_ratio_els_to_uls": els and _noise(els) / _noise(uls),
            "noise_with_twice": _gains(best),
        },
        reason=reason,
        constants=rests_on,
        norms=norms,
        candidates={
            name: {
                "group_size": one.sampling.group_size,
                "units": one.denominator,
                "noise_multiplier": one.noise.multiplier,
                "noise_std": _noise(one),
                "to_best": _noise(one) / min(map(_noise, candidates.values())),
                "chosen": one is best,
            }
            for name, one in candidates.items()
        },
        notes=tuple(_notes(plan, gradients, norms, examples)),
    )


def _notes(
    plan: Plan, gradients: float, norms: GradientNorms | None, examples: int | None
) -> Iterator[str]:
    """Sentences on the choice for the operator."""
    by_user, group = plan.sampling.by_user, plan.sampling.group_size
    if by_user and plan.denominator * group < gradients * (1 - 1e-9):
        yield (
            f"the plan uses {plan.denominator * group:.5g} of {gradients:g} gradients a step: its "
            f"cohort is all {plan.population} users"
        )
    if norms is not None and by_user and group == max(norms.user_norms) < gradients:
        yield (
            f"the best group size is the largest measured, {group}: larger ones may be better "
            "still: --set measure.max_group_size=…"
        )
    if not by_user and examples is None:
        yield (
            f"the number of examples after the cap was taken to be users times group size "
            f"({plan.population}): where users hold fewer, batches are smaller than B; "
            "declare --population-examples"
        )


def _noise(plan: Plan) -> float:
    """The noise on each coordinate of a step's mean."""
    return plan.noise_std / plan.denominator


def _gains(plan: Plan) -> dict[str, float]:
    """The noise with twice the people, gradients or ε, each in parts of the plan's noise; only
    where there is such a plan: for a large ε a small δ may have none.
    """
    draw, budget = plan.sampling, plan.budget
    assert isinstance(draw, PoissonUsers | PoissonExamples)
    chance, epsilon = draw.sampling_probability, budget.target_epsilon or math.inf
    twice = {
        "people": replace(
            plan,
            population=2 * plan.population,
            sampling=replace(draw, sampling_probability=chance / 2),
        ),
        "gradients": replace(plan, sampling=replace(draw, sampling_probability=min(1, 2 * chance))),
        "epsilon": replace(plan, budget=replace(budget, target_epsilon=2 * epsilon)),
    }
    gains = {}
    for name, one in twice.items():
        with suppress(UseError):  # a number to show refuses no plan
            gains[name] = _noise(one.calibrated()) / _noise(plan)
    return gains


def _in_words(plan: Plan) -> str:
    """A candidate's noise, and the numbers that make it."""
    group = plan.sampling.group_size
    if plan.algorithm == "ELS":
        units = f"examples a step, at most {group} of a user in all"
    else:
        units = "users a step with " + ("one example" if group == 1 else f"up to {group} examples")
    return (
        f"{_noise(plan):.4g} on each coordinate of the mean gradient (σ = "
        f"{plan.noise.multiplier:.4g}, {plan.denominator:.5g} {units}, gradients clipped to "
        f"{plan.clip.l2_norm:.4g})"
    )


def _choice(
    request: Request, uls: Plan, els: Plan | None, *, knows_median: bool
) -> tuple[Plan, str]:
    """ULS or ELS, whichever adds less noise per mean gradient (ULS where both are equal), and why.

    var(ζ_ELS) ≤ var(ζ_ULS) if and only if L_ELS σ_ELS / B ≤ L_ULS σ_ULS / M, which is Equation 7
    where G M = B.

    Source: Charles et al. 2024, Equations 5 to 7.
    """
    why = "B is more than all examples after the cap"
    if request.norms is None:
        why = "no gradient norms are known"
    elif not knows_median:
        why = "the median of examples per user is its group size, and neither declared nor released"
    if request.algorithm == "els" and els is None:
        raise UseError(
            f"ELS has no configuration: {why}",
            hint="give --norms or --model, --population-examples and --median-examples; or lower "
            "--budget",
        )
    if request.norms is None:
        return uls, (
            f"ULS, by the public rules of the preset, without gradient norms: {_in_words(uls)}."
        )
    if els is None:
        return uls, f"ULS: {_in_words(uls)}. ELS was not considered: {why}."
    if request.algorithm != "auto":
        asked = els if request.algorithm == "els" else uls
        return asked, f"{asked.algorithm}, as asked for: {_in_words(asked)}."
    less, more = (els, uls) if _noise(els) < _noise(uls) else (uls, els)
    return less, (
        f"{less.algorithm} adds less noise: {_in_words(less)}. {more.algorithm} would add "
        f"{_noise(more) / _noise(less):.3g} times as much (Equation 7): {_in_words(more)}."
    )


def _with_origins(
    request: Request, best: Plan, known: Mapping[str, Constant]
) -> tuple[Plan, tuple[Constant, ...]]:
    """The frozen plan of a candidate, and the origin of each number on which it rests."""
    norms, declared_clip = request.norms, request.l2_clip_norm
    measured = Constant(name="gradient norms", value=None)
    if norms is not None:
        measured = replace(measured, origin=norms.source, query_id=norms.ledger_line)
    clip = replace(measured, name="l2 clip norm", value=best.clip.l2_norm)
    if declared_clip is not None:
        best = replace(best, clip=Clip(l2_norm=declared_clip))
        clip = Constant(name="l2 clip norm", value=declared_clip)
    delta = Constant(name="delta", value=best.budget.target_delta)
    constants = (*known.values(), measured, clip, delta)
    made_for = None if norms is None else norms.made_for
    return replace(best, origins=origins_of(constants), made_for=made_for), constants
