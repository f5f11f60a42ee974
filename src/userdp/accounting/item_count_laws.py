"""How many of one user's items a step draws: the parameters of that law, and nothing numeric.

The accountant (`userdp.accounting.contour`) and the proof (`userdp.accounting.proof`) compute with
these laws each in its own way; they share only the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from userdp.core.vocabulary import require_count, require_probability

MOST_ITEMS = 10**6


@dataclass(frozen=True, kw_only=True, slots=True)
class Binomial:
    """k ~ Binomial(``trials``, ``probability``): each of a user's items joins by a coin of its own.

    Args:
        trials: the user's items; from 1 to 1,000,000, or more where a whole data set is meant.
        probability: of each, in (0, 1]; the float is taken as the dyadic number that it is.

    Raises:
        UseError: a parameter is out of its range (NaN included).
    """

    trials: int
    probability: float

    def __post_init__(self) -> None:
        require_count("group_size", self.trials)
        require_probability("sampling_probability", self.probability)

    @property
    def is_certain(self) -> bool:
        """Whether every item joins every step; else none of them may."""
        return self.probability == 1

    @property
    def most(self) -> int:
        return self.trials

    @property
    def items(self) -> int:
        """How many items the user has."""
        return self.trials

    def of(self, items: int) -> Self:
        """The law for a user of another number of items, all else unchanged."""
        return replace(self, trials=items)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypergeometric:
    """k marked items among ``draws`` of ``population`` without replacement.

    Args:
        draws: the size of the batch; at least 1. The items of others alone can fill it, so that k
            may be 0.
        population: items of the larger data set, the user's included.
        marked: the user's items; at least 1.

    Raises:
        UseError: a parameter is out of its range.
    """

    draws: int
    population: int
    marked: int

    def __post_init__(self) -> None:
        require_count("population", self.population)
        require_count("group_size", self.marked, at_most=self.population)
        require_count("the batch's size", self.draws, at_most=self.population - self.marked)

    @property
    def is_certain(self) -> bool:
        return False

    @property
    def most(self) -> int:
        return min(self.draws, self.marked)

    @property
    def items(self) -> int:
        """How many items the user has."""
        return self.marked

    def of(self, items: int) -> Self:
        """The law for a user of another number of items; the smaller data set stays."""
        return replace(self, population=self.population - self.marked + items, marked=items)


Law = Binomial | Hypergeometric
