"""The interface of everything that can be accounted for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from userdp.accounting.bracket import Bracket
from userdp.accounting.contour import Phase, delta_bracket, epsilon_bracket
from userdp.guarantees import (
    Adjacency,
    Sampling,
    require_count,
    require_delta,
    require_epsilon,
    require_positive,
)


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

    @abstractmethod
    def dp_event(self) -> Any:
        """The mechanism as a ``dp_accounting.DpEvent`` (needs the extra ``dp-accounting``)."""


class MixtureMechanism(Mechanism):
    """A mechanism whose dominating pair is a composition of mixtures of Gaussians."""

    __slots__ = ()

    @abstractmethod
    def phases(self) -> tuple[Phase, ...]:
        """The dominating pair, as phases of identical steps."""

    def epsilon(self, delta: float) -> Bracket:
        """Certified bounds of the least ε at this δ, in (0, 1)."""
        return epsilon_bracket(self.phases(), require_delta(delta))

    def delta(self, epsilon: float) -> Bracket:
        """Certified bounds of the least δ at this ε, >= 0."""
        return delta_bracket(self.phases(), require_epsilon(epsilon))

    def dp_event(self) -> Any:
        """The mechanism as a ``dp_accounting.DpEvent`` (needs the extra ``dp-accounting``)."""
        from userdp.accounting import dp_accounting_backend

        return dp_accounting_backend.mixture_event(self.phases())


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledMechanism(MixtureMechanism):
    """T identical steps, each on a random sample, with noise that can be calibrated.

    Args:
        noise_multiplier: σ, the noise's standard deviation divided by the clip norm; > 0.
        steps: T, noisy updates released; at least 1.
    """

    sampling: ClassVar[Sampling]

    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        require_positive("noise_multiplier", self.noise_multiplier)
        require_count("steps", self.steps)

    @property
    def adjacency(self) -> Adjacency:
        return Adjacency.ADD_OR_REMOVE

    def with_steps(self, steps: int) -> Self:
        """The same mechanism run for another number of steps."""
        return replace(self, steps=steps)

    def with_noise_multiplier(self, noise_multiplier: float) -> Self:
        """The same mechanism with other noise."""
        return replace(self, noise_multiplier=noise_multiplier)
