"""`Sampling`: how a step draws its data, what that costs, and how it is told; one file for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from userdp.core.errors import UseError
from userdp.core.vocabulary import Adjacency, PrivacyUnit, require_count

if TYPE_CHECKING:  # at run time the words alone are to be had without numpy and the accountant
    import numpy as np
    from numpy.typing import NDArray

    from userdp.accounting.mechanisms import NoisySteps

Indices: TypeAlias = "NDArray[np.int64]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumed:
    """Something that has to be true for the price of one sampling to hold; shown in reports.

    Args:
        key: names it, for links and tests.
        title: in a few words.
        statement: what has to be true.
        otherwise: what follows if it is not.
        ensured: who sees to it, and how.
    """

    key: str
    title: str
    statement: str
    otherwise: str
    ensured: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """What is told of a sampling; the command line and the report only render it.

    Args:
        title: names it in a report: "Poisson sampling of users".
        draw: how a step draws, as a clause: "each user joins each step …".
        options: what each of its constants means, by the field's name; help of its option too.
        symbols: the papers' letters for some of them.
        assumes: what its price rests on beyond what every claim rests on.
    """

    title: str
    draw: str
    options: Mapping[str, str]
    symbols: Mapping[str, str] = field(default_factory=dict)
    assumes: tuple[Assumed, ...] = ()


@dataclass(frozen=True, kw_only=True)  # no slots: the codec finds samplings as subclasses
class Sampling(ABC):
    """How each step draws its units; public constants, fixed before any private look.

    A subclass without fields of its own is a dataclass as it is.

    Guarantee: the steps that `draws` gives are dominated by `price`, for neighbouring data sets
    of this ``adjacency``, provided that ``require_store`` accepts the store.

    Args:
        group_size: G, most examples of a user that a step (of users) or the training set (of
            examples) uses; from 1 to 1,000,000.

    Raises:
        UseError: a field is out of its range (NaN included).
    """

    kind: ClassVar[str]
    algorithm: ClassVar[str] = "ELS"
    unit: ClassVar[PrivacyUnit] = PrivacyUnit.EXAMPLE
    words: ClassVar[Words]
    adjacency: ClassVar[Adjacency] = Adjacency.ADD_OR_REMOVE
    covered: ClassVar[bool] = True  # False: no ε is ever claimed for it

    group_size: int

    def __post_init__(self) -> None:
        require_count("group_size", self.group_size, at_most=10**6)

    @classmethod
    @abstractmethod
    def of_size(cls, size: float, *, population: int, group_size: int, **bounds: Any) -> Self:
        """The sampling that expects ``size`` units a step of a declared ``population`` of units.

        ``bounds`` are the other constants that this sampling has, by name.
        """

    @property
    def by_user(self) -> bool:
        """Whether a unit is a user with its examples, rather than one example."""
        return self.unit is PrivacyUnit.USER

    @property
    def items(self) -> int:
        """The units of one user that a step can draw: 1 of users, G of examples."""
        return 1 if self.by_user else self.group_size

    @abstractmethod
    def chance(self, total: int) -> float:
        """The probability that a given unit joins a step, where there are ``total`` units."""

    def sizes(self, total: int) -> tuple[int, int]:
        """The fewest and the most units that a step can draw of ``total``; an audit tests them."""
        return 0, total

    def expected_units(self, population: int) -> float:
        """The public denominator: units expected at a step of the *declared* population.

        Raises:
            UseError: the declared population contradicts another constant of the sampling.
        """
        return self.chance(population) * population

    def price(self, noise_multiplier: float, steps: int) -> NoisySteps:
        """The mechanism that dominates ``steps`` steps of this sampling with Gaussian noise.

        The clip norm moves no price, and the count that it adapts by is part of what the noise
        multiplier accounts for.

        Raises:
            UseError: the sampling has no proven price.
        """
        if not self.covered:
            raise UseError(
                f"sampling {self.kind} has no price: nothing could be claimed",
                hint="sample users or examples by Poisson's law",
            )
        return self._priced(noise_multiplier, steps)

    @abstractmethod
    def _priced(self, noise_multiplier: float, steps: int) -> NoisySteps:
        """The dominating pair, whose proof the subclass cites."""

    def total_units(self, counts: Indices) -> int:
        """How many units there are to draw from; of private data, and operator-only then."""
        return len(counts) if self.by_user else int(counts.clip(max=self.group_size).sum())

    def require_store(self, counts: Indices) -> None:  # noqa: B027 (most accept every store)
        """Refuse a store outside the public bounds that the price is for, before any charge.

        Whether it is refused depends on the exact data, so that the refusal is for the operator's
        eyes only. The default accepts every store.

        Args:
            counts: int64 (users,), examples of each training user.

        Raises:
            UseError: the store is outside the bounds.
        """

    def unit_offsets(self, users: Indices) -> Indices:
        """Where each unit begins among the drawn examples, and where the last one ends.

        Asked only where examples are drawn. The default makes each example a unit of its own.

        Args:
            users: int64 (examples,), whose each drawn example is; equal ones lie together.

        Returns:
            int64 (units + 1,), as `userdp.sampling.draws.Cohort.offsets`.
        """
        import numpy as np

        return np.arange(len(users) + 1, dtype=np.int64)

    @abstractmethod
    def draws(self, total: int, generator: np.random.Generator) -> Iterator[Indices]:
        """For each step the numbers of the units drawn, ascending, each below ``total``.

        Of a sampling that is priced, a step must be independent of those before it: a resumed run
        begins anew, with another generator.
        """
