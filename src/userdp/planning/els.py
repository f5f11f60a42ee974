"""ELS: σ for every group size in one sweep, and the median rule that chooses among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from userdp.errors import UseError
from userdp.planning.uls import Problem
from userdp.vocabulary import require_count


@dataclass(frozen=True, kw_only=True, slots=True)
class ElsCell:
    """One configuration of DP-SGD-ELS, and the noise it would add.

    Args:
        group_size: G, most examples of a user in the training set.
        batch_size: B, examples expected per step.
        steps: T.
        population: the declared number of examples after the cap.
        sampling_probability: p = B / population.
        noise_multiplier: σ_ELS.
        noise_std: of the mean gradient, each coordinate: σ L_ELS / B (Charles et al. 2024, Eq. 5).
    """

    kind: ClassVar[str] = "ELS"

    group_size: int
    batch_size: float
    steps: int
    population: int
    sampling_probability: float
    noise_multiplier: float
    noise_std: float

    @property
    def units(self) -> float:
        """Units expected per step: B examples."""
        return self.batch_size

    @property
    def compute(self) -> float:
        """Gradients per step, expected."""
        return self.batch_size


def examples_after_cap(problem: Problem, group_size: int) -> int:
    """A public number of examples when each user gives G at most: min(declared, users * G)."""
    most = problem.population * group_size
    declared = problem.population_examples
    return most if declared is None else min(most, declared)


def els_cell(problem: Problem, group_size: int) -> ElsCell | None:
    """The configuration with this group size; None if B is more than all examples."""
    require_count("group_size", group_size, at_most=10**6)
    examples = examples_after_cap(problem, group_size)
    if problem.budget > examples:
        return None
    probability = problem.budget / examples
    sigma = problem.table.examples(probability, group_size, problem.steps)
    return ElsCell(
        group_size=group_size,
        batch_size=problem.budget,
        steps=problem.steps,
        population=examples,
        sampling_probability=probability,
        noise_multiplier=sigma,
        noise_std=sigma * problem.norms.example_norm / problem.budget,
    )


def sweep(problem: Problem, group_sizes: Sequence[int]) -> tuple[ElsCell, ...]:
    """σ_ELS for every group size that the budget allows, ascending."""
    cells = [els_cell(problem, size) for size in sorted(set(group_sizes))]
    return tuple(cell for cell in cells if cell is not None)


def median_group_size(median_examples: int) -> int:
    """G_ELS by the median rule: the median number of examples per user.

    Args:
        median_examples: declared, or released under DP; never the data's own median.

    Raises:
        UseError: it is no count from 1 to 1,000,000.

    Source: Charles et al. 2024, Section 6, "Tuning DP-SGD-ELS".
    """
    if not 1 <= median_examples <= 10**6:
        raise UseError(
            f"the median of examples per user must be from 1 to 1000000, got {median_examples!r}",
            hint="give --median-examples",
        )
    return int(median_examples)
