"""Steps whose draw is cut to a cap: close to the steps without one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scipy.special import betainc

from userdp.accounting.bracket import Bracket
from userdp.accounting.closeness import addition, close_delta, close_epsilon
from userdp.accounting.laws import Binomial
from userdp.accounting.mechanisms.mixture import ByMixture
from userdp.errors import UseError
from userdp.vocabulary import Adjacency, delta_up, require_count, require_delta, require_epsilon

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
    (`userdp.accounting.closeness`). The bound is not attained; the lower bound of the brackets is
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
        bracket = self.mixture.delta(require_epsilon(epsilon))
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
