"""`propose`: from a privacy budget, a compute budget and gradient norms to the best plan, and why.

Nothing but arithmetic: the budgets, public constants and norms come in as numbers, so that nothing
here reads a store or loads a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from userdp.accounting import binomial_steps
from userdp.accounting.implemented import implemented_epsilon
from userdp.clip import Clip
from userdp.errors import UseError, warn
from userdp.noise import Gaussian
from userdp.plans.cells import Cell, NoiseTable, Problem, estimate_and_double, optimum
from userdp.plans.norms import GradientNorms, require_told
from userdp.plans.origin import Constant, Provenance, origins_of
from userdp.plans.plan import Budget, Plan
from userdp.plans.proposal import PrivacyBudget, Proposal, Release
from userdp.plans.series import MOST_RUNS, Series
from userdp.plans.small_delta import delta_for, require_small_delta
from userdp.sampling import PoissonExamples, PoissonUsers
from userdp.vocabulary import delta_up, epsilon_up, require_count, require_positive

MOST_NOISE = 0.1
"""The most noise per coordinate of the mean gradient, in units of the norm of one example's.

Beyond it even a step in which every gradient points the same way has, in that one direction, a
signal of less than ten standard deviations of the noise; real gradients agree far less.
"""

_STATISTICS = {
    "population": ("users",),
    "population examples": ("examples",),
    "median examples per user": ("median", "p50"),
}
"""Which DP answers stand for a constant that is not declared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What is asked of the planner: its goals, and the numbers that it has.

    Args:
        epsilon: of training and of all DP answers before it.
        steps: T, noisy updates.
        budget: B, gradients per step, in expectation.
        norms: gradient norms, as numbers.
        delta: of everything; by default n^-1.1 of the declared examples, or users.
        population: the declared number of users.
        population_examples: the declared number of examples of all of them, before any cap; without
            it every user is taken to hold as many as the cap.
        median_examples: the declared median of examples per user, G of ELS (Charles et al. 2024,
            Section 6); ELS cannot be chosen without.
        releases: the DP answers before the plan; the newest stands for what is not declared.
        algorithm: auto takes the one that adds less noise.
        l2_clip_norm: by default the typical norm of what is clipped: L_ULS(G) or L_ELS (Charles et
            al. 2024, Section 3).
        most_noise: refuse plans with more noise than this on a coordinate of the mean gradient,
            in units of the norm of an example's gradient.
        repeat: runs like this one, of all of which together the budget is.
        allow_large_delta: plan even where δ is not below 1 over the number of users.
    """

    epsilon: float
    steps: int
    budget: float
    norms: GradientNorms
    delta: float | None = None
    population: int | None = None
    population_examples: int | None = None
    median_examples: int | None = None
    releases: tuple[Release, ...] = ()
    algorithm: Literal["auto", "uls", "els"] = "auto"
    l2_clip_norm: float | None = None
    most_noise: float = MOST_NOISE
    repeat: int = 1
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        require_count("repeat", self.repeat, at_most=MOST_RUNS)
        require_positive("most_noise", self.most_noise)
        if self.l2_clip_norm is not None:
            require_positive("l2_clip_norm", self.l2_clip_norm)
        if self.algorithm not in ("auto", "uls", "els"):
            raise UseError(f"algorithm must be auto, uls or els, got {self.algorithm!r}")
        require_told(self.norms.users, self.norms.rank_error)
        if self.norms.ledger_line not in (None, *(one.query_id for one in self.releases)):
            raise UseError(
                f"the norms name the ledger line {self.norms.ledger_line}, and the store's ledger "
                "has no such query: what they cost is unknown",
                hint="use the norms with the store that they were released from",
            )

    def constants(self) -> tuple[dict[str, Constant], list[str]]:
        """Each from its declaration, else from the newest answer, else from the norms; and notes.

        Raises:
            UseError: no population is known, or a number is out of its range.
        """
        known: dict[str, Constant] = {}
        notes: list[str] = []
        declared = (self.population, self.population_examples, self.median_examples)
        for name, value in zip(_STATISTICS, declared, strict=True):
            origin, line = Provenance.DECLARED, None
            answers = [one for one in self.releases if one.name in _STATISTICS[name]]
            newest = next((one for one in reversed(answers) if one.value is not None), None)
            if value is None and newest is not None:
                users = known.get("population")
                value, line, origin = newest.value, newest.query_id, Provenance.DP_RELEASE
                if name == "population examples" and users and (value or 0) < (users.value or 0):
                    notes.append(
                        f"the DP answer for examples, {value}, is below the number of users: too "
                        "noisy to use, so users times group size stands for it (its cost counts)"
                    )
                    continue
            elif value is None and name == "median examples per user":
                value, origin = self.norms.median_examples_per_user, self.norms.source
            if value is not None:
                told = name if origin is not Provenance.DP_RELEASE else f"DP {name}"
                require_count(told, value)
                known[name] = Constant(name=name, value=value, origin=origin, query_id=line)
        if "population" not in known:
            raise UseError(
                "the plan needs a population: the sampling probability and every denominator are "
                "made of it, and the store's own count is private",
                hint="declare a nominal number of users with --population, or release it under DP "
                "first, as a share of the budget: userdp store stats STORE "
                f"--epsilon {0.05 * self.epsilon!r} --ask users --ask median",
            )
        return known, notes

    def privacy(self, users: int) -> PrivacyBudget:
        """The total, and what the answers before the plan leave of it for training.

        Raises:
            UseError: nothing is left; δ is not declared and cannot be derived, or says little.
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
    """The best plan within a privacy and a compute budget, what it will do, and why.

    Guarantee: as `Proposal`. Nothing is read but the request.

    Raises:
        UseError: the budget cannot be met or used; the hint names the nearest that can.
    """
    constants, notes = request.constants()
    users, examples, median = (
        None if (one := constants.get(name)) is None else int(one.value or 0)
        for name in _STATISTICS
    )
    assert users is not None
    privacy = request.privacy(users)
    problem = Problem(
        table=NoiseTable(
            target_epsilon=privacy.training_epsilon, target_delta=privacy.delta, runs=request.repeat
        ),
        norms=request.norms,
        budget=request.budget,
        steps=request.steps,
        population=users,
        population_examples=examples,
    )
    best, computed = optimum(problem)
    doubled = estimate_and_double(problem)[-1]
    els = None if median is None else problem.of_examples(median)
    cell, reason = _choice(request, best, els, knows_median=median is not None)
    _require_signal(request, problem, cell)
    plan, rests_on = _plan(request, problem, cell, constants)
    series = Series(plan=plan, runs=request.repeat) if request.repeat > 1 else None
    guarantee = (series or plan).guarantee()
    assert guarantee.epsilon <= privacy.training_epsilon
    sizes = {f"ULS, G = {one.group_size}": one for one in computed}
    measured = {f"ULS, G = {size}" for size in request.norms.user_norms}
    return Proposal(
        plan=plan,
        budget=privacy,
        compute=problem.budget,
        prediction={
            "algorithm": plan.algorithm,
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "accountant": guarantee.accountant,
            "noise_std_per_gradient": plan.noise_std / plan.denominator,
            "noise_to_signal": cell.noise_std / request.norms.example_norm,
            "gradients_per_step": cell.compute,
            "gradients": cell.compute * plan.steps,
            "noise_ratio_els_to_uls": els and els.noise_std / best.noise_std,
        },
        reason=reason,
        constants=rests_on,
        norms=request.norms,
        candidates={
            "ULS, problem (10), all G": best,
            "ULS, Estimate-and-Double": doubled,
            **({} if els is None else {"ELS, median rule": els}),
            **{name: one for name, one in sizes.items() if name in measured},
        },
        notes=(*notes, *_notes(problem, best, cell)),
        series=series,
    )


def _choice(
    request: Request, uls: Cell, els: Cell | None, *, knows_median: bool
) -> tuple[Cell, str]:
    """ULS or ELS, whichever adds less noise per mean gradient (ULS where both are equal), and why.

    var(ζ_ELS) ≤ var(ζ_ULS) if and only if L_ELS σ_ELS / B ≤ L_ULS σ_ULS / M, which is Equation 7
    where G M = B.

    Source: Charles et al. 2024, Equations 5 to 7.
    """
    why = "B is more than all examples after the cap"
    if not knows_median:
        why = "the median of examples per user is its group size, and neither declared nor released"
    if request.algorithm == "els" and els is None:
        raise UseError(
            f"ELS has no configuration: {why}",
            hint="lower --budget, or give --population-examples and --median-examples",
        )
    if request.algorithm == "els" and els is not None:
        return els, f"ELS, as asked for: {els.in_words()}."
    if request.algorithm == "uls":
        return uls, f"ULS, as asked for: {uls.in_words()}."
    if els is None:
        return uls, f"ULS: {uls.in_words()}. ELS was not considered: {why}."
    ratio = els.noise_std / uls.noise_std
    less, more = (uls, els) if ratio >= 1 else (els, uls)
    left = els.norm * els.noise_multiplier
    right = els.units / uls.units * uls.norm * uls.noise_multiplier
    return less, (
        f"{less.algorithm} adds less noise: {less.in_words()}. {more.algorithm} would add "
        f"{max(ratio, 1 / ratio):.3g} times as much: {more.in_words()}. Equation 7: L_ELS σ_ELS = "
        f"{left:.4g} {'>' if ratio > 1 else '≤'} (B/M) L_ULS σ_ULS = {right:.4g}."
    )


def _plan(
    request: Request, problem: Problem, cell: Cell, known: Mapping[str, Constant]
) -> tuple[Plan, tuple[Constant, ...]]:
    """The frozen plan of a configuration, and where each number that it rests on comes from."""
    norms, clip = request.norms, request.l2_clip_norm
    source, line = norms.source, norms.ledger_line
    by_norms = (source, line) if clip is None else (Provenance.DECLARED, None)
    clip = cell.norm if clip is None else clip
    constants = (
        *known.values(),
        Constant(name="gradient norms", value=None, origin=source, query_id=line),
        Constant(name="l2 clip norm", value=clip, origin=by_norms[0], query_id=by_norms[1]),
        Constant(name="delta", value=problem.table.target_delta, origin=Provenance.DECLARED),
    )
    sampling = PoissonUsers if cell.algorithm == "ULS" else PoissonExamples
    return Plan(
        sampling=sampling(
            sampling_probability=cell.sampling_probability, group_size=cell.group_size
        ),
        clip=Clip(l2_norm=clip),
        noise=Gaussian(multiplier=cell.noise_multiplier),
        steps=cell.steps,
        population=cell.population,
        budget=Budget(
            target_delta=problem.table.target_delta, target_epsilon=problem.table.target_epsilon
        ),
        origins=origins_of(constants),
        made_for=norms.made_for,
    ), constants


def _notes(problem: Problem, best: Cell, chosen: Cell) -> list[str]:
    notes = []
    if best.compute < problem.budget * (1 - 1e-9):
        notes.append(
            f"the optimum uses {best.compute:.5g} of {problem.budget:g} gradients a step: its "
            f"cohort is all {problem.population} users"
        )
    if best.group_size == problem.norms.largest_group_size < problem.budget:
        notes.append(
            f"the best group size is the largest measured, {best.group_size}: larger ones may be "
            "better still: --set measure.max_group_size=…"
        )
    if chosen.algorithm == "ELS" and problem.population_examples is None:
        notes.append(
            f"the number of examples after the cap was taken to be users times group size "
            f"({chosen.population}): where users hold fewer, batches are smaller than B; "
            "declare --population-examples"
        )
    return notes


def _require_signal(request: Request, problem: Problem, cell: Cell) -> None:
    """Refuse noise that hides what the gradients have in common; the hint names an ε that would do.

    At that ε the configuration itself meets the limit, and the best there does so all the more.
    """
    unit, limit = request.norms.example_norm, request.most_noise
    if cell.noise_std <= limit * unit:
        return
    table, by_user = problem.table, cell.algorithm == "ULS"
    loudest = binomial_steps(
        sampling_probability=cell.sampling_probability,
        group_size=1 if by_user else cell.group_size,
        noise_multiplier=limit * unit * cell.units / cell.norm,
        steps=cell.steps * table.runs,
    )
    epsilon = implemented_epsilon(
        loudest.epsilon, table.target_delta, steps=cell.steps * table.runs
    ).upper
    raise UseError(
        f"epsilon = {epsilon_up(table.target_epsilon)} for training (delta = "
        f"{delta_up(table.target_delta)}) at B = {problem.budget:g} gradients a step and T = "
        f"{problem.steps} steps needs σ = {cell.noise_multiplier:.4g} with {cell.units:.5g} "
        f"{'users' if by_user else 'examples'} a step: noise of {cell.noise_std / unit:.3g} times "
        f"an example's gradient norm on every coordinate, and the limit is {limit:g}; such a model "
        "would learn next to nothing",
        hint=f"epsilon {epsilon_up(epsilon * 1.001, 3)} for training would do at this budget; or "
        f"raise --budget (to {problem.population * problem.norms.largest_group_size} at most), "
        "lower --steps, or hold a store of more people",
    )
