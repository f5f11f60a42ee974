"""Steps whose dominating pair is a mixture of Gaussians against one: what samplings come to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from userdp.accounting.bracket import Bracket
from userdp.accounting.contour import Phase, delta_bracket, epsilon_bracket, phase_of
from userdp.accounting.laws import MOST_ITEMS, Binomial, Hypergeometric, Law
from userdp.accounting.mechanisms.base import NoisySteps
from userdp.vocabulary import (
    Adjacency,
    require_count,
    require_delta,
    require_epsilon,
    require_noise_multiplier,
    require_positive,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture(NoisySteps):
    """T steps that are dominated by N(scale·K, σ²) against N(0, σ²), with K drawn from ``law``.

    Guarantee: ``epsilon`` and ``delta`` bracket, in the worse of both directions,
    δ(ε) = H_{e^ε}(N(0, σ²)^T, N(scale·K, σ²)^T). The sampling that names the law must show that
    this pair dominates what runs under ``adjacency`` (`userdp.sampling`). K = 1 with certainty
    is the plain Gaussian mechanism of sensitivity ``scale``, with
    δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ), μ = scale·√T / σ (Balle & Wang 2018, Theorem 8).

    Args:
        law: how many of the user's items a step draws.
        scale: how far each drawn item moves the sum, in clip norms; > 0.
        noise_multiplier: σ, the noise's standard deviation divided by the clip norm; in [1e-30,
            1e30].
        steps: T, noisy updates released; at least 1.
        adjacency: which neighbouring data sets the pair is for.

    Raises:
        UseError: a parameter is out of its range (NaN included).
    """

    law: Law
    scale: float = 1.0
    noise_multiplier: float
    steps: int
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        require_count("group_size", self.law.items, at_most=MOST_ITEMS)
        require_positive("scale", self.scale)
        require_noise_multiplier(self.noise_multiplier)
        require_count("steps", self.steps)

    @property
    def items(self) -> int:
        return self.law.items

    def with_steps(self, steps: int) -> Self:
        return replace(self, steps=steps)

    def with_noise_multiplier(self, noise_multiplier: float) -> Self:
        return replace(self, noise_multiplier=noise_multiplier)

    def of(self, items: int) -> Self:
        return replace(self, law=self.law.of(items))

    def phases(self) -> tuple[Phase, ...]:
        """The dominating pair, as phases of identical steps."""
        return (
            phase_of(
                self.law,
                scale=self.scale,
                noise_multiplier=self.noise_multiplier,
                count=self.steps,
            ),
        )

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
class ByMixture(NoisySteps):
    """Steps that are priced by way of a `Mixture`, whose parameters are theirs."""

    mixture: Mixture

    @property
    def steps(self) -> int:
        return self.mixture.steps

    @property
    def noise_multiplier(self) -> float:
        return self.mixture.noise_multiplier

    @property
    def items(self) -> int:
        return self.mixture.items

    def with_steps(self, steps: int) -> Self:
        return replace(self, mixture=self.mixture.with_steps(steps))

    def with_noise_multiplier(self, noise_multiplier: float) -> Self:
        return replace(self, mixture=self.mixture.with_noise_multiplier(noise_multiplier))

    def of(self, items: int) -> Self:
        return replace(self, mixture=self.mixture.of(items))


def binomial_steps(
    *,
    sampling_probability: float,
    group_size: int = 1,
    noise_multiplier: float,
    steps: int,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE,
) -> Mixture:
    """Each of a user's ``group_size`` items joins each step by a coin of its own."""
    return Mixture(
        law=Binomial(trials=group_size, probability=sampling_probability),
        noise_multiplier=noise_multiplier,
        steps=steps,
        adjacency=adjacency,
    )


def hypergeometric_steps(
    *, batch_size: int, population: int, group_size: int = 1, noise_multiplier: float, steps: int
) -> Mixture:
    """Batches of B of at least n + G items, G of them the user's, without replacement.

    An item of the user that is drawn also displaces another one, hence the scale of 2 (Ganesh
    2024, Theorem 3.3, with G items added to the smaller data set of n).
    """
    return Mixture(
        law=Hypergeometric(draws=batch_size, population=population + group_size, marked=group_size),
        scale=2.0,
        noise_multiplier=noise_multiplier,
        steps=steps,
    )


def gaussian_steps(
    *,
    shift: float = 1.0,
    noise_multiplier: float,
    steps: int,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE,
) -> Mixture:
    """Everybody takes part in every step, and moves the sum by ``shift`` clip norms.

    ``shift`` is 1 where a unit is added, removed or zeroed out, 2 where it is replaced.
    """
    return Mixture(
        law=Binomial(trials=1, probability=1.0),
        scale=shift,
        noise_multiplier=noise_multiplier,
        steps=steps,
        adjacency=adjacency,
    )
