"""Which budgets are refused, and the nearest ones that are not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from userdp.accounting import Mixture, binomial_steps
from userdp.accounting.implemented import implemented_epsilon
from userdp.accounting.roots import least
from userdp.errors import UseError
from userdp.planning.uls import Problem, UlsCell
from userdp.vocabulary import delta_up, epsilon_up


def require_usable(problem: Problem) -> None:
    """Refuse a compute budget that no cohort can use up.

    Raises:
        UseError: B exceeds population times the largest group size.
    """
    largest = problem.norms.largest_group_size
    most = problem.population * largest
    if problem.budget > most and not problem.extrapolate:
        raise UseError(
            f"a budget of {problem.budget:g} gradients a step is more than all "
            f"{problem.population} users give with the largest group size measured, {largest}: "
            f"{most} gradients",
            hint=f"give --budget {most} or less, or measure larger group sizes with userdp probe",
        )


def refusal(problem: Problem, *, best: UlsCell | None, limit: float) -> UseError:
    """The error for a budget whose least noise is over the limit (or that no noise meets).

    Its hint names the nearest ε, B and T that would do, each with all else fixed.

    Args:
        problem: the budget.
        best: the configuration of least noise, or None if no noise is enough.
        limit: see `userdp.planning.options`.
    """
    epsilon, delta = problem.table.target_epsilon, problem.table.target_delta
    asked = (
        f"epsilon = {epsilon_up(epsilon)} for training (delta = {delta_up(delta)}) at B = "
        f"{problem.budget:g} gradients a step and T = {problem.steps} steps"
    )
    if best is None:
        what = f"{asked} is out of reach: no noise multiplier up to 1e6 is enough"
    else:
        ratio = best.noise_std / problem.norms.example_norm
        what = (
            f"{asked} needs σ = {best.noise_multiplier:.4g} with M = {best.cohort_size:.5g} "
            f"users a step: noise of {ratio:.3g} times an example's gradient norm on every "
            f"coordinate, and the limit is {limit:g}; such a model would learn next to nothing"
        )
    sizes = sorted({1, 1 if best is None else best.group_size})
    target = limit * problem.norms.example_norm

    def with_budget(budget: int) -> Problem:
        return replace(problem, budget=float(budget))

    def with_less(left_out: int) -> Problem:
        return replace(problem, steps=problem.steps - left_out)

    def nearest(
        changed: Callable[[int], Problem], low: int, high: int
    ) -> tuple[int, UlsCell] | None:
        """A number in (low, high] that would do, near the least one, and its configuration."""
        size = cache(lambda at: _within(changed(at), sizes, target))
        number = low < high and least(
            lambda at: size(math.ceil(at)) is None,
            start=low + 1.0,
            most=float(high),
            smallest=float(low),
            relative=0.02,
        )
        if not number:
            return None
        group_size = size(math.ceil(number))
        assert group_size is not None
        return math.ceil(number), changed(math.ceil(number)).cell(group_size)

    ways = []
    budget = nearest(with_budget, math.ceil(problem.budget), problem.population * max(sizes))
    if budget is not None:
        gradients, cell = budget
        ways.append(
            f"--budget {gradients} (M = {cell.cohort_size:.5g} users a step, σ = "
            f"{cell.noise_multiplier:.4g}, noise {cell.noise_std / problem.norms.example_norm:.3g})"
        )
    elif best is not None:
        what += f"; no larger budget does, with {problem.population} users"
    least_epsilon = _least_epsilon(problem, sizes, target)
    if least_epsilon is not None:
        ways.append(f"epsilon {epsilon_up(least_epsilon)} for training at this budget")
    fewer = nearest(with_less, 0, problem.steps - 1)
    if fewer is not None:
        ways.append(f"--steps {fewer[1].steps} (σ = {fewer[1].noise_multiplier:.4g})")
    if ways:
        hint = "the nearest that would do: " + "; or ".join(ways)
    else:
        hint = (
            f"no budget, epsilon up to 1000 or number of steps meets it with "
            f"{problem.population} users: more users are needed"
        )
    return UseError(what, hint=hint)


def _loudest(problem: Problem, group_size: int, target: float) -> Mixture:
    """The steps of a cell whose noise on the mean gradient is just the target."""
    cohort = problem.cohort_size(group_size)
    norm = problem.norms.user_norm(group_size, extrapolate=True)
    return binomial_steps(
        sampling_probability=min(cohort / problem.population, 1.0),
        noise_multiplier=target * cohort / norm,
        steps=problem.steps * problem.table.runs,
    )


def _within(problem: Problem, sizes: list[int], target: float) -> int | None:
    """A group size whose noise meets the target, if one does: one δ each tells it."""
    table = problem.table
    for size in sizes:
        if size <= problem.largest_group_size:
            spent = _loudest(problem, size, target * (1 - 2e-5)).delta(table.target_epsilon)
            if spent.upper <= table.ideal_delta(problem.steps):
                return size
    return None


def _least_epsilon(problem: Problem, sizes: list[int], target: float) -> float | None:
    """The ε of noise that just meets the limit, a little rounded up."""
    delta = problem.table.target_delta
    epsilon = min(
        implemented_epsilon(
            _loudest(problem, size, target).epsilon,
            delta,
            steps=problem.steps * problem.table.runs,
        ).upper
        for size in sizes
    )
    if not 0 < epsilon <= 1000:
        return None
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return math.ceil(epsilon / unit * 1.0001) * unit
