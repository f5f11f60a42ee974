"""The interfaces of everything that can be accounted for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

from userdp.accounting.bracket import Bracket
from userdp.errors import UseError
from userdp.vocabulary import Adjacency


class Mechanism(ABC):
    """Noisy releases with public parameters, and what they cost.

    Guarantee: ``epsilon`` and ``delta`` bracket the exact privacy of the pair of distributions
    that dominates the mechanism: no adjacent pair of data sets is easier to tell apart.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def adjacency(self) -> Adjacency:
        """Which pairs of data sets the price is for."""

    @abstractmethod
    def epsilon(self, delta: float) -> Bracket:
        """Certified bounds of the least ε at this δ, in (0, 1)."""

    @abstractmethod
    def delta(self, epsilon: float) -> Bracket:
        """Certified bounds of the least δ at this ε, >= 0."""

    def dp_event(self) -> Any:
        """The mechanism as a ``dp_accounting.DpEvent`` (needs the extra ``dp-accounting``).

        Raises:
            UseError: dp-accounting has no event for it.
        """
        raise UseError(
            f"{type(self).__name__} has no dp-accounting event", hint="use the accountant contour"
        )


class NoisySteps(Mechanism):
    """T identical steps with noise that can be calibrated: what one plan does.

    Frozen, and with a hash: equal mechanisms have equal prices, and are priced once
    (`userdp.accounting.accountants.epsilon_by`).
    """

    __slots__ = ()

    @property
    @abstractmethod
    def steps(self) -> int:
        """T, noisy updates released."""

    @property
    @abstractmethod
    def noise_multiplier(self) -> float:
        """σ, the noise's standard deviation divided by the clip norm."""

    @property
    @abstractmethod
    def items(self) -> int:
        """The most items of one user that this is the price for."""

    @abstractmethod
    def with_steps(self, steps: int) -> Self:
        """The same mechanism run for another number of steps."""

    @abstractmethod
    def with_noise_multiplier(self, noise_multiplier: float) -> Self:
        """The same mechanism with other noise."""

    @abstractmethod
    def of(self, items: int) -> Self:
        """The same steps as a user of another number of items sees them."""
