"""Configurations within one budget: the noise of each, Estimate-and-Double, and the best of all.

Equation (10) of the paper minimises L_ULS(G) σ_ULS(M) over G M = B. By Equation (6) the noise on
the mean gradient has standard deviation σ_ULS(M) L_ULS(G) / M, and it is that which Section 6 means
where it says that "increasing M decreases σ". The noise *multiplier* grows with M, since more
sampling costs more: read literally, τ_M would always exceed 1, τ_G never, and Algorithm 3 would
always double G. So σ(M) / M stands here for the paper's σ_ULS(M).
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from userdp.accounting import binomial_steps, calibrate
from userdp.accounting.implemented import ideal_delta_for
from userdp.errors import UseError
from userdp.plans.norms import GradientNorms
from userdp.vocabulary import require_count, require_delta, require_positive

TOLERANCE = 1e-5
"""σ exceeds the least possible by this factor, less one, at most."""

_START = 32
"""M of the first configuration of Algorithm 3."""


class NoiseTable:
    """The least noise multipliers within one (ε, δ): each computed once, from its neighbour on.

    Guarantee: every σ returned keeps its steps, as they run, within the budget, and exceeds the
    least such σ by a factor of about 1 + `TOLERANCE` at most.

    σ does not fall as the sampling probability grows, all else fixed: the draw with q is a mixture
    of the draw with q' > q and of none, and the hockey-stick divergence is jointly convex.
    `optimum` leaves cells out by that, and by nothing unproven.

    Args:
        target_epsilon: of training only, > 0.
        target_delta: in (0, 1).
        runs: of a declared series that the budget is for, all of the setting that is asked about.

    Attributes:
        calibrations: how many were computed.
    """

    def __init__(self, *, target_epsilon: float, target_delta: float, runs: int = 1) -> None:
        self.runs = runs
        self.target_epsilon = require_positive("target_epsilon", target_epsilon)
        self.target_delta = require_delta(target_delta)
        self.calibrations = 0
        self._multipliers: dict[tuple[float, int, int], float] = {}

    def sigma(self, sampling_probability: float, steps: int, group_size: int = 1) -> float:
        """σ of T steps that draw each of a user's G units with probability p.

        Source: Charles et al. 2024, Equation 2 (ELS), and 3 (ULS: a user is one unit).
        """
        key = sampling_probability, steps, group_size
        if key not in self._multipliers:
            mechanism = binomial_steps(
                sampling_probability=sampling_probability,
                group_size=group_size,
                noise_multiplier=self._nearest(key),
                steps=steps * self.runs,
            )
            # The δ that steps with Gaussian noise must reach for the budget's to hold as they run.
            ideal = ideal_delta_for(self.target_epsilon, self.target_delta, steps=steps * self.runs)
            calibrated = calibrate(
                mechanism,
                target_epsilon=self.target_epsilon,
                target_delta=ideal,
                tolerance=TOLERANCE,
            )
            self.calibrations += 1
            self._multipliers[key] = calibrated.noise_multiplier
        return self._multipliers[key]

    def _nearest(self, key: tuple[float, int, int]) -> float:
        """A σ to start from: that of the setting with the nearest G p √T."""

        def distance(other: tuple[float, int, int]) -> float:
            places = (math.log(one[0] * math.sqrt(one[1]) * one[2]) for one in (key, other))
            return abs(next(places) - next(places))

        return self._multipliers[min(self._multipliers, key=distance)] if self._multipliers else 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One configuration, and the noise that it would add.

    Args:
        algorithm: "ULS" or "ELS".
        group_size: G, most examples of a user in a step (ULS) or in the training set (ELS).
        units: expected per step: M users, or B examples.
        steps: T.
        population: the declared number of users, or of examples after the cap.
        sampling_probability: units / population.
        noise_multiplier: σ.
        norm: L_ULS(G), or L_ELS.
        noise_std: of the mean gradient, each coordinate: σ L / units (Charles et al. 2024,
            Equations 5 and 6).
    """

    algorithm: Literal["ULS", "ELS"]
    group_size: int
    units: float
    steps: int
    population: int
    sampling_probability: float
    noise_multiplier: float
    norm: float
    noise_std: float

    @property
    def compute(self) -> float:
        """Gradients per step, expected, at most."""
        return self.units * (self.group_size if self.algorithm == "ULS" else 1)

    def in_words(self) -> str:
        """Its noise, and what it comes from."""
        if self.algorithm == "ELS":
            units = f"examples a step, at most {self.group_size} of a user in all"
        elif self.group_size == 1:
            units = "users a step with one example each"
        else:
            units = f"users a step with up to {self.group_size} examples each"
        return (
            f"{self.noise_std:.4g} on each coordinate of the mean gradient (σ = "
            f"{self.noise_multiplier:.4g}, {self.units:.5g} {units}, L_{self.algorithm} = "
            f"{self.norm:.4g})"
        )


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
    """

    table: NoiseTable
    norms: GradientNorms
    budget: float
    steps: int
    population: int
    population_examples: int | None = None

    def __post_init__(self) -> None:
        require_count("steps", self.steps, at_most=10**9)
        require_count("population", self.population)
        if not 1 <= self.budget < math.inf:
            raise UseError(
                f"budget must be finite and at least 1, got {self.budget!r}: a step computes at "
                "least one gradient",
                hint="give --budget in gradients per step, for instance --budget 64",
            )

    @property
    def largest_group_size(self) -> int:
        """No G beyond it is allowed: M would fall below one user, or nothing was measured."""
        return min(math.floor(self.budget), self.norms.largest_group_size)

    def cohort_size(self, group_size: int) -> float:
        """The largest M that budget and population allow: min(B / G, N)."""
        return min(self.budget / group_size, float(self.population))

    def sigma(self, cohort_size: float) -> float:
        """σ_ULS(M)."""
        return self.table.sigma(min(cohort_size / self.population, 1.0), self.steps)

    def of_users(self, group_size: int, cohort_size: float | None = None) -> Cell:
        """ULS with (G, M), within budget and population; with the largest M where none is given."""
        size = self.cohort_size(group_size) if cohort_size is None else cohort_size
        norm = self.norms.user_norm(group_size)
        return self._cell("ULS", group_size, size, self.population, self.sigma(size), norm)

    def of_examples(self, group_size: int) -> Cell | None:
        """ELS with G, which by the median rule is the median of examples per user.

        The declared number of examples when each user gives G at most is min(declared, users G).

        Returns:
            None where B is more than all examples.

        Source: Charles et al. 2024, Section 6, "Tuning DP-SGD-ELS".
        """
        require_count("group_size", group_size, at_most=10**6)
        examples = self.population * group_size
        if self.population_examples is not None:
            examples = min(examples, self.population_examples)
        if self.budget > examples:
            return None
        sigma = self.table.sigma(self.budget / examples, self.steps, group_size)
        return self._cell("ELS", group_size, self.budget, examples, sigma, self.norms.example_norm)

    def _cell(
        self,
        algorithm: Literal["ULS", "ELS"],
        group_size: int,
        units: float,
        population: int,
        sigma: float,
        norm: float,
    ) -> Cell:
        return Cell(
            algorithm=algorithm,
            group_size=group_size,
            units=units,
            steps=self.steps,
            population=population,
            sampling_probability=min(units / population, 1.0),
            noise_multiplier=sigma,
            norm=norm,
            noise_std=sigma * norm / units,
        )


def estimate_and_double(problem: Problem) -> tuple[Cell, ...]:
    """Double whichever of G and M shrinks the noise more, until G M = B; from G = 1, M = 32.

    Where B is no power of two times the start, the last doubling that stays within B ends it. G is
    not doubled beyond the group sizes measured, nor M beyond the population.

    Returns:
        The configurations on the way; the last is the answer.

    Source: Charles et al. 2024, Algorithm 3 and Equation 11, with σ(M)/M for σ(M), see the module.
    """
    group, size = 1, _START
    while size > 1 and size > min(problem.budget, problem.population):
        size //= 2
    way = [problem.of_users(group, float(size))]
    while 2 * group * size <= problem.budget:
        tau_group = tau_cohort = math.inf
        if 2 * group <= problem.largest_group_size:
            tau_group = problem.norms.user_norm(2 * group) / problem.norms.user_norm(group)
        if 2 * size <= problem.population:
            tau_cohort = problem.sigma(2 * size) / problem.sigma(size) / 2
        if math.isinf(tau_group) and math.isinf(tau_cohort):
            break
        group, size = (2 * group, size) if tau_group < tau_cohort else (group, 2 * size)
        way.append(problem.of_users(group, float(size)))
    return tuple(way)


def optimum(problem: Problem) -> tuple[Cell, tuple[Cell, ...]]:
    """Problem (10) over every whole G, each with the largest M that is allowed.

    Branch and bound over intervals [a, b] of group sizes. In one, M(G) = min(B/G, N) lies between
    M(b) and M(a), and

        L(G) σ(M(G)) / M(G)  ≥  min L over [a, b] · σ(M(b)) / M(a),

    since σ does not fall as M grows (`NoiseTable`). The least L is at an end or at a measured group
    size between, L being straight in between in logarithms. An interval whose bound is not better
    than the best cell is left out.

    M below B/G is never better in any setting tried: σ(M)/M falls as M grows (at least, it does at
    every M computed; there is no proof). So cells with G M < B are left out, except where M is at
    all users.

    Returns:
        The best cell, within a factor of 1 + `TOLERANCE`; and all that were computed to know it,
        by rising group size: those of the measured sizes are among them.
    """
    most, noise = problem.largest_group_size, attrgetter("noise_std")
    knots = [size for size in problem.norms.group_sizes if size < most]
    cells = {size: problem.of_users(size) for size in sorted({1, *knots, most})}
    best = min(cells.values(), key=noise)
    queue: list[tuple[float, int, int]] = []

    def push(low: int, high: int) -> None:
        between = [problem.norms.user_norms[size] for size in knots if low < size < high]
        norm = min(cells[low].norm, cells[high].norm, *between)
        bound = norm * cells[high].noise_multiplier / (1 + TOLERANCE) / problem.cohort_size(low)
        if high - low > 1:
            heapq.heappush(queue, (bound, low, high))

    for low, high in itertools.pairwise(sorted(cells)):
        push(low, high)
    while queue:
        least, low, high = heapq.heappop(queue)
        if least >= best.noise_std:
            break
        middle = min(max(round(math.sqrt(low * high)), low + 1), high - 1)
        cells[middle] = problem.of_users(middle)
        best = min(best, cells[middle], key=noise)
        push(low, middle)
        push(middle, high)
    return best, tuple(cells[size] for size in sorted(cells))
