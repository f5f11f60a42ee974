r"""Items that are exchanged: what removing them costs, then what adding others costs.

Between neighbouring data sets D and D' the contents of one user's items change in any way (an item
may also lose its text, or gain one); which items there are stays.

**The bound.** Let D° be D without that user's items. D and D° are neighbours under zero-out
adjacency, and so are D° and D': each pair is dominated by the same mixture over T steps
(`Mixture`). If that is (ε₁, δ₁)-DP, then for every event E

.. math:: M(D)(E) \le e^{ε_1} M(D°)(E) + δ_1 \le e^{2ε_1} M(D')(E) + (1 + e^{ε_1})\, δ_1 .

Beside it stands the Gaussian mechanism of shift 2G: given the draws, one step's sums differ by at
most 2C for each of the user's drawn items, of which there are at most G. The smaller of the two is
taken; where every item joins every step the second is attained.

**Why not the mixture N(2·Binom(G, p), σ²) against N(0, σ²).** It looks like the same step with
twice the shift, and it is too small. Where the user's gradients are opposite in D and D', *both*
distributions are mixtures, N(-Binom) and N(+Binom): at G = 2, p = 0.9, σ = 0.7, one step, ε = 1,
their δ is 0.934 and that mixture's 0.909. The test ``test_exchanged`` holds it against this pair.

Source: the lemma of Vadhan 2017, 2.2, for two steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from userdp.accounting.bracket import Bracket
from userdp.accounting.group_privacy import example_target, group_guarantee
from userdp.accounting.mechanisms.mixture import ByMixture, Mixture, gaussian_steps
from userdp.vocabulary import Adjacency, require_delta, require_epsilon

ACCOUNTANT = "contour (remove, then add)"


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
            shift=2.0 * self.mixture.scale * self.items,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps,
            adjacency=self.adjacency,
        )

    def epsilon(self, delta: float) -> Bracket:
        """Bounds of the least ε at this δ, in (0, 1)."""
        return Bracket(
            lower=self.mixture.epsilon(require_delta(delta)).lower,
            upper=min(_twice(self.mixture, delta), self.in_full.epsilon(delta).upper),
            accountant=ACCOUNTANT,
        )

    def delta(self, epsilon: float) -> Bracket:
        """Bounds of the least δ at this ε, >= 0."""
        half = require_epsilon(epsilon) / 2
        twice = group_guarantee(half, min(self.mixture.delta(half).upper, 1 - 2**-53), 2).delta
        return Bracket(
            lower=self.mixture.delta(epsilon).lower,
            upper=min(1.0, twice, self.in_full.delta(epsilon).upper),
            accountant=ACCOUNTANT,
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
