"""`propose`: from a request to a proposal."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from userdp.clip import Clip
from userdp.errors import UseError
from userdp.noise import Gaussian
from userdp.planning.budget import PrivacyBudget
from userdp.planning.choice import Choice, choose, describe
from userdp.planning.els import ElsCell, els_cell, median_group_size, sweep
from userdp.planning.feasible import refusal, require_usable
from userdp.planning.noise import NoiseTable, OutOfReach
from userdp.planning.norms import GradientNorms
from userdp.planning.options import Goals
from userdp.planning.proposal import Candidates, Constant, Origin, Proposal, origins_of
from userdp.planning.uls import Problem, UlsCell, estimate_and_double, optimum
from userdp.plans import Budget, Plan, Series
from userdp.sampling import PoissonExamples, PoissonUsers
from userdp.vocabulary import require_count

_STEP_FACTORS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8)
_NEAR = 1.1  # of the least averaged noise, when T is chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class Request(Goals):
    """What is asked of the planner: its goals, and the numbers that it has.

    Args:
        budget: B, gradients per step, in expectation.
        privacy: total (ε, δ), and the DP releases that the constants below were taken from.
        norms: gradient norms, as numbers.
        population: nominal number of users.
        population_examples: nominal number of examples of all of them, before any cap; without
            it every user is taken to hold as many as the cap.
        median_examples: median of examples per user; ELS cannot be chosen without.
    """

    budget: float
    privacy: PrivacyBudget
    norms: GradientNorms
    population: Constant
    population_examples: Constant | None = None
    median_examples: Constant | None = None

    def __post_init__(self) -> None:
        Goals.__post_init__(self)
        if self.algorithm == "els" and self.median_examples is None:
            raise UseError(
                "ELS needs the median of examples per user for its group size, and none is known",
                hint="give --median-examples, or release it: userdp stats STORE --epsilon E",
            )


def propose(request: Request) -> Proposal:
    """The best plan within a privacy and a compute budget, what it will do, and why.

    Guarantee: as `Proposal`. Nothing is read but the request.

    Raises:
        UseError: the budget cannot be met or used; the hint names the nearest that can.
    """
    table = NoiseTable(
        target_epsilon=request.privacy.training_epsilon,
        target_delta=request.privacy.delta,
        runs=request.repeat,
    )
    examples = request.population_examples
    problem = Problem(
        table=table,
        norms=request.norms,
        budget=request.budget,
        steps=request.steps,
        population=_whole(request.population),
        population_examples=None if examples is None else _whole(examples),
        extrapolate=request.extrapolate,
    )
    require_usable(problem)
    notes: list[str] = []
    try:
        if request.choose_steps:
            problem, note = _with_chosen_steps(problem, _other_steps(problem))
            notes.append(note)
        best = optimum(problem)
        median = request.median_examples
        els = None if median is None else els_cell(problem, median_group_size(_whole(median)))
    except OutOfReach:
        raise refusal(problem, best=None, limit=request.most_noise) from None
    chosen = _choose(request, best.cell, els)
    _require_signal(request, problem, best.cell, chosen.cell)
    candidates = Candidates(
        uls_optimum=best.cell,
        uls_estimate_and_double=estimate_and_double(problem).cell,
        uls_estimate_and_double_literal=estimate_and_double(problem, literal=True).cell,
        uls_other_steps=_other_steps(problem),
        uls=best.evaluated,
        els=_sweep(request, problem),
        els_median_rule=els,
    )
    plan, constants = _plan(request, problem, chosen.cell)
    series = _series(request, plan)
    plan = plan if series is None else series.plan
    guarantee = plan.guarantee() if series is None else series.guarantee()
    assert guarantee.epsilon <= request.privacy.training_epsilon
    notes += _notes(problem, best.cell, chosen)
    return Proposal(
        plan=plan,
        budget=request.privacy,
        compute=problem.budget,
        prediction={
            "algorithm": plan.algorithm,
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "accountant": guarantee.accountant,
            "noise_std_per_gradient": plan.noise_std / plan.denominator,
            "noise_to_signal": chosen.cell.noise_std / request.norms.example_norm,
            "gradients_per_step": chosen.cell.compute,
            "gradients": chosen.cell.compute * plan.steps,
            "noise_ratio_els_to_uls": chosen.ratio,
        },
        reason=chosen.reason,
        constants=constants,
        norms=request.norms,
        candidates=candidates,
        notes=tuple(notes),
        calibrations=table.calibrations,
        series=series,
    )


def _series(request: Request, plan: Plan) -> Series | None:
    """The series that is asked for; its answers cost a little more noise than the table's."""
    if request.repeat == 1:
        return None
    series = Series(plan=plan, runs=request.repeat, queries=request.repeat_answers)
    return series.calibrated() if series.queries else series


def _whole(constant: Constant) -> int:
    assert constant.value is not None
    return require_count(constant.name, constant.value)


def _other_steps(problem: Problem) -> tuple[UlsCell, ...]:
    """The optimum for T from an eighth to eight times as many steps, each at the same B T."""
    total = problem.budget * problem.steps
    counts = sorted({round(problem.steps * factor) for factor in _STEP_FACTORS} - {0})
    most = problem.population * problem.norms.largest_group_size
    cells = []
    for steps in counts:
        budget = total / steps
        if steps == problem.steps:
            budget = problem.budget
        if budget >= 1 and (budget <= most or problem.extrapolate):
            with contextlib.suppress(OutOfReach):
                cells.append(optimum(replace(problem, steps=steps, budget=budget)).cell)
    return tuple(cells)


def _with_chosen_steps(problem: Problem, others: tuple[UlsCell, ...]) -> tuple[Problem, str]:
    least = min(cell.averaged_noise_std for cell in others)
    taken = max(
        (cell for cell in others if cell.averaged_noise_std <= _NEAR * least),
        key=lambda cell: cell.steps,
    )
    changed = replace(
        problem, steps=taken.steps, budget=problem.budget * problem.steps / taken.steps
    )
    note = (
        f"T = {taken.steps} in place of {problem.steps}: the most steps at the same compute whose "
        f"noise, averaged over all updates, is within 10% of the least found ({least:.4g})"
    )
    return changed, note


def _sweep(request: Request, problem: Problem) -> tuple[ElsCell, ...]:
    """Powers of two up to the largest group size measured or twice the median, and the median."""
    sizes = set(_powers(problem.norms.largest_group_size))
    if request.median_examples is not None:
        median = _whole(request.median_examples)
        sizes |= {median, *_powers(min(2 * median, 10**6))}
    return sweep(problem, sorted(sizes))


def _require_signal(
    request: Request, problem: Problem, uls: UlsCell, chosen: UlsCell | ElsCell
) -> None:
    """Refuse what would learn next to nothing, with the nearest budgets that would do."""
    unit, limit = request.norms.example_norm, request.most_noise
    noise = chosen.noise_std / unit
    if noise <= limit:
        return
    if isinstance(chosen, ElsCell) and uls.noise_std / unit <= limit:
        raise UseError(
            f"ELS at B = {chosen.batch_size:g} gradients a step needs σ = "
            f"{chosen.noise_multiplier:.4g}: noise of {noise:.3g} times an example's gradient norm "
            f"on every coordinate, and the limit is {limit:g}",
            hint=f"leave --algorithm out: ULS has {uls.noise_std / unit:.3g}, with "
            f"M = {uls.cohort_size:.5g} users a step and G = {uls.group_size}",
        )
    raise refusal(problem, best=uls, limit=limit)


def _powers(most: int) -> Iterable[int]:
    return (2**power for power in range(most.bit_length()))


def _choose(request: Request, uls: UlsCell, els: ElsCell | None) -> Choice:
    example_norm = request.norms.example_norm
    if request.algorithm == "uls":
        words = describe(uls, example_norm=example_norm)
        return Choice(cell=uls, ratio=None, reason=f"ULS, as asked for: {words}.")
    if request.algorithm == "els":
        if els is None:
            raise UseError(
                f"a batch of {request.budget:g} examples is more than all users have together "
                "after the cap of the median rule, so that no sampling probability realises it",
                hint="lower --budget, or declare more examples with --population-examples",
            )
        words = describe(els, example_norm=example_norm)
        return Choice(cell=els, ratio=None, reason=f"ELS, as asked for: {words}.")
    if request.median_examples is None:
        why = (
            "ELS was not considered: its group size is the median of examples per user, which is "
            "neither declared nor released."
        )
    else:
        why = "ELS was not considered: B is more than all examples after the cap."
    return choose(uls, els, example_norm=example_norm, why_no_els=why)


def _plan(
    request: Request, problem: Problem, cell: UlsCell | ElsCell
) -> tuple[Plan, tuple[Constant, ...]]:
    """The frozen plan of a configuration, and where each number that it rests on comes from."""
    sampling: type[PoissonUsers | PoissonExamples]
    if isinstance(cell, UlsCell):
        norm, population, sampling = cell.user_norm, problem.population, PoissonUsers
    else:
        norm, population, sampling = request.norms.example_norm, cell.population, PoissonExamples
    norm = norm if request.l2_clip_norm is None else request.l2_clip_norm
    constants = _constants(request, norm)
    return Plan(
        sampling=sampling(
            sampling_probability=cell.sampling_probability, group_size=cell.group_size
        ),
        clip=Clip(l2_norm=norm),
        noise=Gaussian(multiplier=cell.noise_multiplier),
        steps=cell.steps,
        population=population,
        budget=Budget(
            target_delta=problem.table.target_delta, target_epsilon=problem.table.target_epsilon
        ),
        origins=origins_of(constants),
        made_for=request.norms.made_for,
    ), constants


def _constants(request: Request, clip: float) -> tuple[Constant, ...]:
    """Where each number that the choice rests on comes from."""
    norms = request.norms
    origin = Origin(str(norms.source))
    declared = request.l2_clip_norm is not None
    constants = [
        request.population,
        request.population_examples,
        request.median_examples,
        Constant(name="gradient norms", value=None, origin=origin, query_id=norms.ledger_line),
        Constant(
            name="l2 clip norm",
            value=clip,
            origin=Origin.DECLARED if declared else origin,
            query_id=None if declared else norms.ledger_line,
        ),
        Constant(name="delta", value=request.privacy.delta, origin=Origin.DECLARED),
    ]
    return tuple(constant for constant in constants if constant is not None)


def _notes(problem: Problem, best: UlsCell, chosen: Choice) -> list[str]:
    notes = []
    if best.compute < problem.budget * (1 - 1e-9):
        notes.append(
            f"the optimum uses {best.compute:.5g} of {problem.budget:g} gradients a step: its "
            f"cohort is all {problem.population} users"
        )
    if best.group_size == problem.norms.largest_group_size and problem.budget > best.group_size:
        notes.append(
            f"the best group size is the largest measured, {best.group_size}: larger ones may be "
            "better still; measure them with userdp probe"
        )
    if isinstance(chosen.cell, ElsCell) and problem.population_examples is None:
        notes.append(
            f"the number of examples after the cap was taken to be users times group size "
            f"({chosen.cell.population}): where users hold fewer, batches are smaller than B; "
            "declare --population-examples"
        )
    if not math.isclose(problem.budget, round(problem.budget)):
        notes.append(f"B = {problem.budget:.6g} gradients a step, in expectation")
    return notes
