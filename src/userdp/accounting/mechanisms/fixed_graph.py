r"""Example-level sampling under fixed-graph adjacency: one user's examples are exchanged.

Every user owns at most G examples of the training set, whoever holds them; between neighbouring
data sets D and D' the contents of one user's examples change in any way (an example may also lose
its text, or gain one), and which examples there are, and who owns them, stays.

**The bound.** Let D° be D without that user's examples. D and D° are neighbours under zero-out
adjacency, and so are D° and D': each pair is dominated by the mixture N(Binom(G, p), σ²) against
N(0, σ²) over T steps (`PoissonExamples`). If that is (ε₁, δ₁)-DP, then for every event E

.. math:: M(D)(E) \le e^{ε_1} M(D°)(E) + δ_1 \le e^{2ε_1} M(D')(E) + (1 + e^{ε_1})\, δ_1 .

Beside it stands the Gaussian mechanism of shift 2G: given the draws, one step's sums differ by at
most 2C for each of the user's sampled examples, of which there are at most G. The smaller of the
two is taken; at p = 1 the second is attained.

**Why not the mixture N(2·Binom(G, p), σ²) against N(0, σ²).** It looks like the same step with
twice the shift, and it is too small. Where the user's gradients are opposite in D and D', *both*
distributions are mixtures, N(-Binom) and N(+Binom): at G = 2, p = 0.9, σ = 0.7, one step, ε = 1,
their δ is 0.934 and that mixture's 0.909. The test ``test_fixed_graph`` holds it against this pair.

Source: the adjacency of Ganesh et al. 2025, arXiv:2503.03622; the lemma of Vadhan 2017, 2.2, for
two steps; Charles et al. 2024, Theorem 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from userdp.accounting.bracket import Bracket
from userdp.accounting.group_privacy import example_target, group_guarantee
from userdp.accounting.mechanisms.base import Mechanism
from userdp.accounting.mechanisms.full import FullParticipation
from userdp.accounting.mechanisms.poisson import PoissonExamples
from userdp.errors import UseError
from userdp.guarantees import Adjacency, Sampling, require_delta, require_epsilon

ACCOUNTANT = "contour (remove, then add)"


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedGraphExamples(Mechanism):
    """ELS where one user's examples, at most G, are exchanged for others; see the module.

    Guarantee: ``upper`` of `epsilon` and `delta` bounds every pair of neighbours. ``lower`` is the
    price of zero-out adjacency, which is a special case; the truth lies between.

    Args:
        sampling_probability: p, in (0, 1].
        group_size: G, most examples that one user owns, alone or with others; at least 1.
        noise_multiplier: σ, the noise's standard deviation divided by the clip norm; > 0.
        steps: T, noisy updates released; at least 1.

    Raises:
        UseError: a parameter is out of its range (NaN included).
    """

    sampling: ClassVar[Sampling] = Sampling.EXAMPLES

    sampling_probability: float
    group_size: int
    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        assert self.zeroed.steps  # validates all fields

    @property
    def adjacency(self) -> Adjacency:
        return Adjacency.FIXED_GRAPH

    @property
    def zeroed(self) -> PoissonExamples:
        """The same steps where the user's examples vanish: half of the way."""
        return PoissonExamples(
            sampling_probability=self.sampling_probability,
            group_size=self.group_size,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps,
            measured_under=Adjacency.ZERO_OUT,
        )

    @property
    def in_full(self) -> FullParticipation:
        """The Gaussian mechanism in which all of the user's examples join each step."""
        return FullParticipation(
            shift=2.0 * self.group_size,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps,
            measured_under=Adjacency.FIXED_GRAPH,
        )

    def with_steps(self, steps: int) -> Self:
        """The same mechanism run for another number of steps."""
        return replace(self, steps=steps)

    def with_noise_multiplier(self, noise_multiplier: float) -> Self:
        """The same mechanism with other noise."""
        return replace(self, noise_multiplier=noise_multiplier)

    def epsilon(self, delta: float) -> Bracket:
        """Bounds of the least ε at this δ, in (0, 1)."""
        zeroed = self.zeroed
        return Bracket(
            lower=zeroed.epsilon(require_delta(delta)).lower,
            upper=min(_twice(zeroed, delta), self.in_full.epsilon(delta).upper),
            accountant=ACCOUNTANT,
        )

    def delta(self, epsilon: float) -> Bracket:
        """Bounds of the least δ at this ε, >= 0."""
        zeroed, half = self.zeroed, require_epsilon(epsilon) / 2
        twice = group_guarantee(half, min(zeroed.delta(half).upper, 1 - 2**-53), 2).delta
        return Bracket(
            lower=zeroed.delta(epsilon).lower,
            upper=min(1.0, twice, self.in_full.delta(epsilon).upper),
            accountant=ACCOUNTANT,
        )

    def dp_event(self) -> Any:
        """There is none: dp-accounting has no event for this bound."""
        raise UseError(
            "fixed-graph adjacency has no dp-accounting event",
            hint="use the accountant contour",
        )


def _twice(zeroed: PoissonExamples, delta: float) -> float:
    """The least 2x at which ``zeroed`` is (x, δ/(1 + e^x))-DP, to about 1e-6, on its upper side.

    x is where ε₁(δ/(1 + e^x)) = x. The left side rises slowly in x, so that putting it in for x
    climbs to that place in a few turns; any x that is at least the left side is certified.
    """
    x = zeroed.epsilon(delta * (0.5 - 1e-15)).upper
    for _ in range(100):
        if x == 0:
            return 0.0
        x *= 1 + 1e-6
        share = example_target(2 * x, delta, 2).delta
        if share == 0:
            break
        needed = zeroed.epsilon(share).upper
        if needed <= x:
            return math.nextafter(2 * x, math.inf)
        x = needed
    return math.inf
