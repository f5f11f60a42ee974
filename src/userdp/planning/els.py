"""ELS: σ for every group size in one sweep, and the median rule that chooses among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from userdp.errors import UseError
from userdp.planning.noise import NoiseTable
from userdp.vocabulary import require_count, require_positive


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


@dataclass(frozen=True, kw_only=True, slots=True)
class ElsProblem:
    """What an ELS configuration depends on beside its group size.

    Args:
        table: σ of this budget.
        budget: B, gradients per step.
        steps: T.
        population: declared number of users.
        population_examples: declared number of examples of all users together, if it is known;
            without it every user is taken to hold G.
        example_norm: L_ELS.
    """

    table: NoiseTable
    budget: float
    steps: int
    population: int
    population_examples: int | None
    example_norm: float

    def __post_init__(self) -> None:
        require_positive("budget", self.budget)
        require_count("steps", self.steps)
        require_count("population", self.population)
        require_positive("example_norm", self.example_norm)
        if self.population_examples is not None:
            require_count("population_examples", self.population_examples)

    def examples_after_cap(self, group_size: int) -> int:
        """A public number of examples when each user gives G at most: min(declared, users * G)."""
        most = self.population * group_size
        return most if self.population_examples is None else min(most, self.population_examples)

    def cell(self, group_size: int) -> ElsCell | None:
        """The configuration with this group size; None if B is more than all examples."""
        require_count("group_size", group_size, at_most=10**6)
        examples = self.examples_after_cap(group_size)
        if self.budget > examples:
            return None
        probability = self.budget / examples
        sigma = self.table.examples(probability, group_size, self.steps)
        return ElsCell(
            group_size=group_size,
            batch_size=self.budget,
            steps=self.steps,
            population=examples,
            sampling_probability=probability,
            noise_multiplier=sigma,
            noise_std=sigma * self.example_norm / self.budget,
        )


def sweep(problem: ElsProblem, group_sizes: Sequence[int]) -> tuple[ElsCell, ...]:
    """σ_ELS for every group size that the budget allows, ascending."""
    cells = [problem.cell(size) for size in sorted(set(group_sizes))]
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
