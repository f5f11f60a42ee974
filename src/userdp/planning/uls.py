"""ULS: Estimate-and-Double (Algorithm 3), and problem (10) solved over all group sizes.

Equation (10) of the paper minimises L_ULS(G) σ_ULS(M) over G M = B. By Equation (6) the noise on
the mean gradient has standard deviation σ_ULS(M) L_ULS(G) / M, and it is that which Section 6 means
where it says that "increasing M decreases σ". The noise *multiplier* grows with M, since more
sampling costs more: read literally, τ_M would always exceed 1, τ_G never, and Algorithm 3 would
always double G. So σ(M) / M stands here for the paper's σ_ULS(M); the literal reading can be asked
for, to see the difference.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

from userdp.errors import UseError
from userdp.planning.noise import TOLERANCE, NoiseTable
from userdp.planning.norms import GradientNorms
from userdp.vocabulary import require_count, require_positive


@dataclass(frozen=True, kw_only=True, slots=True)
class UlsCell:
    """One configuration of DP-SGD-ULS, and the noise it would add.

    Args:
        group_size: G, most examples of a user in a step.
        cohort_size: M, users expected per step.
        steps: T.
        sampling_probability: q = M / population.
        noise_multiplier: σ_ULS.
        user_norm: L_ULS(G).
        noise_std: of the mean gradient, each coordinate: σ L_ULS(G) / M (Charles et al. 2024,
            Eq. 6).
    """

    kind: ClassVar[str] = "ULS"

    group_size: int
    cohort_size: float
    steps: int
    sampling_probability: float
    noise_multiplier: float
    user_norm: float
    noise_std: float

    @property
    def units(self) -> float:
        """Units expected per step: M users."""
        return self.cohort_size

    @property
    def compute(self) -> float:
        """Gradients per step, expected, at most: G M."""
        return self.group_size * self.cohort_size

    @property
    def averaged_noise_std(self) -> float:
        """Of the mean of all T updates: what is left where their signals agree."""
        return self.noise_std / math.sqrt(self.steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """What a configuration of either algorithm depends on beside G and M.

    Args:
        table: σ of this budget.
        norms: L_ULS by group size, and L_ELS.
        budget: B, gradients per step; G M must not exceed it.
        steps: T.
        population: declared number of users; M must not exceed it.
        population_examples: declared number of examples of all users together, if it is known;
            without it ELS takes every user to hold G.
        extrapolate: allow group sizes beyond the largest measured.
    """

    table: NoiseTable
    norms: GradientNorms
    budget: float
    steps: int
    population: int
    population_examples: int | None = None
    extrapolate: bool = False

    def __post_init__(self) -> None:
        require_count("steps", self.steps)
        require_count("population", self.population)
        if self.population_examples is not None:
            require_count("population_examples", self.population_examples)
        if not 1 <= self.budget < math.inf:
            raise UseError(
                f"budget must be finite and at least 1, got {self.budget!r}: a step computes at "
                "least one gradient",
                hint="give --budget in gradients per step, for instance --budget 64",
            )

    @property
    def largest_group_size(self) -> int:
        """No G beyond it is allowed: M would fall below one user, or nothing was measured."""
        most = math.floor(self.budget)
        return most if self.extrapolate else min(most, self.norms.largest_group_size)

    def cohort_size(self, group_size: int) -> float:
        """The largest M that budget and population allow: min(B / G, N)."""
        return min(self.budget / group_size, float(self.population))

    def sigma(self, cohort_size: float) -> float:
        """σ_ULS(M)."""
        return self.table.users(min(cohort_size / self.population, 1.0), self.steps)

    def cell(self, group_size: int, cohort_size: float | None = None) -> UlsCell:
        """The configuration (G, M); with the largest M allowed where none is given.

        Raises:
            UseError: G M exceeds the budget, M the population, or either is out of range.
        """
        require_count("group_size", group_size, at_most=10**6)
        size = self.cohort_size(group_size) if cohort_size is None else cohort_size
        require_positive("cohort_size", size, at_most=float(self.population))
        if group_size * size > self.budget * (1 + 1e-12):
            raise UseError(
                f"group size {group_size} times cohort size {size:g} is "
                f"{group_size * size:g} gradients a step, and the budget is {self.budget:g}"
            )
        sigma, norm = self.sigma(size), self.norms.user_norm(group_size, extrapolate=True)
        return UlsCell(
            group_size=group_size,
            cohort_size=size,
            steps=self.steps,
            sampling_probability=min(size / self.population, 1.0),
            noise_multiplier=sigma,
            user_norm=norm,
            noise_std=sigma * norm / size,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Doubling:
    """The way and the end of Algorithm 3.

    Args:
        cell: where it ended.
        trace: (G, M, τ_G, τ_M) at every step; a τ is infinite where that doubling is not allowed.
    """

    cell: UlsCell
    trace: tuple[tuple[int, float, float, float], ...]


def estimate_and_double(
    problem: Problem, *, group_size: int = 1, cohort_size: int = 32, literal: bool = False
) -> Doubling:
    """Double whichever of G and M shrinks the noise more, until G M = B.

    Where B is no power of two times the start, the last doubling that stays within B ends it. G is
    not doubled beyond the group sizes measured, nor M beyond the population.

    Args:
        problem: budget, norms and σ.
        group_size: G⁰.
        cohort_size: M⁰, a power of two; halved until G⁰ M⁰ fits the budget.
        literal: compare noise multipliers, σ(2M)/σ(M), as Algorithm 3 is printed; by default the
            noise on the mean gradient, (σ(2M)/2M)/(σ(M)/M), as Equation 6 has it.

    Source: Charles et al. 2024, Algorithm 3 and Equation 11.
    """
    size = cohort_size
    while size > 1 and (group_size * size > problem.budget or size > problem.population):
        size //= 2
    trace: list[tuple[int, float, float, float]] = []
    while 2 * group_size * size <= problem.budget:
        tau_group = tau_cohort = math.inf
        if 2 * group_size <= problem.largest_group_size:
            tau_group = problem.norms.user_norm(
                2 * group_size, extrapolate=True
            ) / problem.norms.user_norm(group_size, extrapolate=True)
        if 2 * size <= problem.population:
            tau_cohort = problem.sigma(2 * size) / problem.sigma(size) / (1 if literal else 2)
        if math.isinf(tau_group) and math.isinf(tau_cohort):
            break
        trace.append((group_size, float(size), tau_group, tau_cohort))
        if tau_group < tau_cohort:
            group_size *= 2
        else:
            size *= 2
    return Doubling(cell=problem.cell(group_size, float(size)), trace=tuple(trace))


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimum:
    """The best cell, and how much was computed to know it.

    Args:
        cell: of the least noise on the mean gradient.
        evaluated: the cells computed, by rising group size.
    """

    cell: UlsCell
    evaluated: tuple[UlsCell, ...]


def optimum(problem: Problem) -> Optimum:
    """Problem (10) over every whole G, each with the largest M that is allowed.

    Branch and bound over intervals [a, b] of group sizes. In one, M(G) = min(B/G, N) lies between
    M(b) and M(a), and

        L(G) σ(M(G)) / M(G)  ≥  min L over [a, b] · σ(M(b)) / M(a),

    since σ does not fall as M grows (`NoiseTable`). The least L is at an end or at a measured group
    size between, L being straight in between in logarithms. An interval whose bound is not better
    than the best cell is left out.

    M below B/G is never better in any setting tried: σ(M)/M falls as M grows (at least, it does at
    every M computed; there is no proof). So cells with G M < B are left out, except where M is at
    the population.

    Args:
        problem: budget, norms and σ.

    Source: Charles et al. 2024, Equation 10.
    """
    most = problem.largest_group_size
    noise = attrgetter("noise_std")
    knots = [size for size in problem.norms.group_sizes if size < most]
    cells = {size: problem.cell(size) for size in sorted({1, *knots, most})}
    best = min(cells.values(), key=noise)

    def bound(low: int, high: int) -> float:
        between = [problem.norms.user_norms[size] for size in knots if low < size < high]
        norm = min(cells[low].user_norm, cells[high].user_norm, *between)
        return norm * cells[high].noise_multiplier / (1 + TOLERANCE) / problem.cohort_size(low)

    queue: list[tuple[float, int, int]] = []

    def push(low: int, high: int) -> None:
        if high - low > 1:
            heapq.heappush(queue, (bound(low, high), low, high))

    for low, high in itertools.pairwise(sorted(cells)):
        push(low, high)
    while queue:
        least, low, high = heapq.heappop(queue)
        if least >= best.noise_std:
            break
        middle = min(max(round(math.sqrt(low * high)), low + 1), high - 1)
        cells[middle] = problem.cell(middle)
        best = min(best, cells[middle], key=noise)
        push(low, middle)
        push(middle, high)
    return Optimum(cell=best, evaluated=tuple(cells[size] for size in sorted(cells)))
