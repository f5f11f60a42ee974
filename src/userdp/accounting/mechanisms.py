r"""What a run does, as frozen values that know their price.

A mechanism is a tuple of public constants, fixed before any private look. ``epsilon(delta)`` and
``delta(epsilon)`` return a certified `Bracket`; report its ``upper``. No sampling is named here:
each says in `userdp.sampling` which of these dominates it.

**Items that are exchanged** (`Exchanged`). Between neighbouring data sets D and D' the contents of
one user's items change in any way (an item may also lose its text, or gain one); which items there
are stays. Let D° be D without that user's items. D and D° are neighbours under zero-out adjacency,
and so are D° and D': each pair is dominated by the same mixture over T steps (`Mixture`). If that
is (ε₁, δ₁)-DP, then for every event E

.. math:: M(D)(E) \le e^{ε_1} M(D°)(E) + δ_1 \le e^{2ε_1} M(D')(E) + (1 + e^{ε_1})\, δ_1

(the lemma of Vadhan 2017, 2.2, for two steps). Beside it stands the Gaussian mechanism of shift 2G:
given the draws, one step's sums differ by at most 2C for each of the user's drawn items, of which
there are at most G. The smaller of the two is taken; where every item joins every step the second
is attained.

Why not the mixture N(2·Binom(G, p), σ²) against N(0, σ²)? It looks like the same step with twice
the shift, and it is too small. Where the user's gradients are opposite in D and D', *both*
distributions are mixtures, N(-Binom) and N(+Binom): at G = 2, p = 0.9, σ = 0.7, one step, ε = 1,
their δ is 0.934 and that mixture's 0.909. The test ``test_exchanged`` holds it against this pair.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

from scipy.special import betainc

from userdp.accounting.bracket import Bracket, addition, close_delta, close_epsilon
from userdp.accounting.contour import Pair, delta_bracket, epsilon_bracket, pair_of
from userdp.accounting.group_privacy import example_target, group_guarantee
from userdp.accounting.item_count_laws import MOST_ITEMS, Binomial, Hypergeometric, Law
from userdp.core.errors import UseError
from userdp.core.vocabulary import (
    Adjacency,
    delta_up,
    require_count,
    require_delta,
    require_epsilon,
    require_noise_multiplier,
    require_positive,
)


class NoisySteps(ABC):
    """T identical noisy steps with public parameters, and what they cost: what one plan does.

    Guarantee: ``epsilon`` and ``delta`` bracket the exact privacy of the pair of distributions
    that dominates the mechanism: no adjacent pair of data sets is easier to tell apart.

    Frozen, and with a hash: equal mechanisms have equal prices, and are priced once
    (`userdp.accounting.accountants.epsilon_by`).
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

    @property
    @abstractmethod
    def steps(self) -> int:
        """T, noisy updates released."""

    @property
    @abstractmethod
    def noise_multiplier(self) -> float:
        """σ, the noise's standard deviation divided by the clip norm."""

    @abstractmethod
    def with_steps(self, steps: int) -> Self:
        """The same mechanism run for another number of steps."""

    @abstractmethod
    def with_noise_multiplier(self, noise_multiplier: float) -> Self:
        """The same mechanism with other noise."""


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

    def with_steps(self, steps: int) -> Self:
        return replace(self, steps=steps)

    def with_noise_multiplier(self, noise_multiplier: float) -> Self:
        return replace(self, noise_multiplier=noise_multiplier)

    def of(self, items: int) -> Self:
        """The same steps as a user of another number of items sees them."""
        return replace(self, law=self.law.of(items))

    def pair(self) -> Pair:
        """The dominating pair, and how often it is composed."""
        sigma = self.noise_multiplier
        return pair_of(self.law, scale=self.scale, noise_multiplier=sigma, steps=self.steps)

    def epsilon(self, delta: float) -> Bracket:
        return epsilon_bracket(self.pair(), delta)

    def delta(self, epsilon: float) -> Bracket:
        return delta_bracket(self.pair(), epsilon)


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

    def with_steps(self, steps: int) -> Self:
        return replace(self, mixture=self.mixture.with_steps(steps))

    def with_noise_multiplier(self, noise_multiplier: float) -> Self:
        return replace(self, mixture=self.mixture.with_noise_multiplier(noise_multiplier))


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


_ROUNDING = 1 + 1e-9  # betainc is good to about 1e-13 relative where it does not underflow

# Of δ, set aside for overflows: from next to nothing in small strides, since ε is found for the
# first share that suffices. Shares near 1 leave almost nothing of δ and are a last resort.
_SHARES = (
    *(2.0 ** (-bits / 64) for bits in range(40 * 64, 0, -1)),
    *(1 - 2.0**-bits for bits in range(7, 11)),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Capped(ByMixture):
    """Steps in which a draw of more than ``cap`` units is cut to ``cap``.

    Guarantee: the capped run differs from the one without a cap with probability at most
    τ = T·Pr[drawn > cap] on every data set for which ``drawn`` bounds the number drawn, however
    the cut is made. So it is τ-close in total variation, and hence (ε, δ(ε) + (1 + e^ε)·τ)-DP
    (`userdp.accounting.bracket`). The bound is not attained; the lower bound of the brackets is
    therefore 0.

    Args:
        mixture: the steps without the cap.
        cap: most units (users or examples) of a step; at least 1.
        drawn: the law of the units drawn at a step from the largest data set allowed: its
            ``trials`` are a *public upper bound* on the units of the larger data set.

    Raises:
        UseError: a parameter is out of its range.
    """

    cap: int
    drawn: Binomial

    def __post_init__(self) -> None:
        require_count("cap", self.cap)

    @property
    def adjacency(self) -> Adjacency:
        return self.mixture.adjacency

    @property
    def overflow(self) -> float:
        """τ: upper bound on the probability that any step of the run overflows, at most 1."""
        most = self.drawn.trials
        if self.cap >= most:
            return 0.0
        # Pr[Binomial(N, p) > cap] = I_p(cap + 1, N - cap), the regularised incomplete beta function
        single = float(betainc(self.cap + 1.0, float(most - self.cap), self.drawn.probability))
        return min(1.0, self.steps * max(single, math.ulp(0.0)) * _ROUNDING)

    def delta(self, epsilon: float) -> Bracket:
        """Bounds of the least δ at this ε, >= 0."""
        bracket = self.mixture.delta(epsilon)
        upper = close_delta(bracket.upper, epsilon, distance=self.overflow)
        return replace(bracket, lower=0.0, upper=upper)

    def epsilon(self, delta: float) -> Bracket:
        """Bounds of the least ε at this δ, in (0, 1).

        Raises:
            UseError: the cap overflows too often for any ε.
        """
        require_delta(delta)
        bracket = close_epsilon(
            self.mixture.epsilon, delta, distance=self.overflow, shares=_SHARES, usable=0.999
        )
        if bracket is None:
            raise UseError(
                f"a cap of {self.cap} overflows with probability {self.overflow:.3g}, and delta = "
                f"{delta_up(delta)} must pay for (1 + e^epsilon) times that, at least "
                f"{addition(0.0, self.overflow):.3g}: no epsilon holds",
                hint="raise the cap, or sample less",
            )
        return bracket


_TWICE = "contour (remove, then add)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchanged(ByMixture):
    """Steps in which one user's items are exchanged for others; see the module.

    Guarantee: ``upper`` of `epsilon` and `delta` bounds every pair of neighbours. ``lower`` is the
    price of zero-out adjacency, which is a special case; the truth lies between.

    Args:
        mixture: the same steps where the user's items vanish: half of the way.
        adjacency: what the exchange is called.
    """

    adjacency: Adjacency = Adjacency.FIXED_GRAPH

    @property
    def in_full(self) -> Mixture:
        """The Gaussian mechanism in which all of the user's items join each step."""
        return gaussian_steps(
            shift=2.0 * self.mixture.scale * self.mixture.law.items,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps,
            adjacency=self.adjacency,
        )

    def epsilon(self, delta: float) -> Bracket:
        """Bounds of the least ε at this δ, in (0, 1)."""
        return Bracket(
            lower=self.mixture.epsilon(delta).lower,
            upper=min(_twice(self.mixture, delta), self.in_full.epsilon(delta).upper),
            accountant=_TWICE,
        )

    def delta(self, epsilon: float) -> Bracket:
        """Bounds of the least δ at this ε, >= 0."""
        half = require_epsilon(epsilon) / 2
        twice = group_guarantee(half, min(self.mixture.delta(half).upper, 1 - 2**-53), 2).delta
        return Bracket(
            lower=self.mixture.delta(epsilon).lower,
            upper=min(1.0, twice, self.in_full.delta(epsilon).upper),
            accountant=_TWICE,
        )


def _twice(removed: Mixture, delta: float) -> float:
    """The least 2x at which ``removed`` is (x, δ/(1 + e^x))-DP, to about 1e-6, on its upper side.

    x is where ε₁(δ/(1 + e^x)) = x. The left side rises slowly in x, so that putting it in for x
    climbs to that place in a few turns; any x that is at least the left side is certified.
    """
    x = removed.epsilon(delta * (0.5 - 1e-15)).upper
    for _ in range(100):
        if x == 0:
            return 0.0
        x *= 1 + 1e-6
        share = example_target(2 * x, delta, 2).delta
        if share == 0:
            break
        needed = removed.epsilon(share).upper
        if needed <= x:
            return math.nextafter(2 * x, math.inf)
        x = needed
    return math.inf
