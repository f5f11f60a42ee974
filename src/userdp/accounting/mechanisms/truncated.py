"""Poisson sampling with a cap on the physical batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from scipy.special import betainc

from userdp.accounting.bracket import Bracket
from userdp.accounting.mechanisms.base import Mechanism
from userdp.accounting.mechanisms.poisson import PoissonExamples, PoissonUsers
from userdp.errors import UseError
from userdp.guarantees import Adjacency, delta_up, require_count, require_delta, require_epsilon

_ROUNDING = 1 + 1e-9  # betainc is good to about 1e-13 relative where it does not underflow


@dataclass(frozen=True, kw_only=True, slots=True)
class TruncatedPoisson(Mechanism):
    """Poisson sampling in which a draw of more than ``cap`` units is cut to ``cap``.

    Guarantee: the truncated run differs from the Poisson run with probability at most
    τ = T·Pr[Binomial(N, p) > cap] on every data set of at most N units, so that in total variation
    it is τ-close to it, and hence (ε, δ(ε) + (1 + e^ε)·τ)-DP: for neighbours D, D' and any event S,
    Pr[M'(D) ∈ S] <= Pr[M(D) ∈ S] + τ <= e^ε Pr[M(D') ∈ S] + δ + τ
    <= e^ε (Pr[M'(D') ∈ S] + τ) + δ + τ. The bound is not attained; the lower bound of the brackets
    is therefore 0.

    Args:
        untruncated: the Poisson mechanism.
        cap: most units (users or examples) of a step; at least 1.
        most_units: N, a *public upper bound* on the units of the larger data set; at least 1.

    Raises:
        UseError: a parameter is out of its range.
    """

    untruncated: PoissonUsers | PoissonExamples
    cap: int
    most_units: int

    def __post_init__(self) -> None:
        require_count("cap", self.cap)
        require_count("most_units", self.most_units)

    @property
    def adjacency(self) -> Adjacency:
        return self.untruncated.adjacency

    @property
    def overflow(self) -> float:
        """τ: upper bound on the probability that any step of the run overflows, at most 1."""
        if self.cap >= self.most_units:
            return 0.0
        # Pr[Binomial(N, p) > cap] = I_p(cap + 1, N - cap), the regularised incomplete beta function
        single = float(
            betainc(
                self.cap + 1.0,
                float(self.most_units - self.cap),
                self.untruncated.sampling_probability,
            )
        )
        if single == 0.0:
            single = math.ulp(0.0)
        return min(1.0, self.untruncated.steps * single * _ROUNDING)

    def delta(self, epsilon: float) -> Bracket:
        found = self.untruncated.delta(require_epsilon(epsilon))
        added = self._added(epsilon)
        return Bracket(lower=0.0, upper=min(1.0, found.upper + added), accountant=found.accountant)

    def epsilon(self, delta: float) -> Bracket:
        require_delta(delta)
        if self._added(0.0) >= delta:
            raise UseError(
                f"a cap of {self.cap} overflows with probability {self.overflow:.3g}, more than "
                f"delta = {delta_up(delta)} leaves room for: no epsilon holds",
                hint="raise the cap, or sample less",
            )
        # δ(ε) + (1 + e^ε)τ <= δ: reserve the second term at a guess of ε and iterate upwards.
        reserved, epsilon = self._added(0.0), 0.0
        for _ in range(200):
            if reserved >= delta:
                break
            found = self.untruncated.epsilon(delta - reserved)
            if found.upper <= epsilon or self._added(found.upper) <= reserved:
                return Bracket(
                    lower=0.0, upper=max(found.upper, epsilon), accountant=found.accountant
                )
            epsilon = found.upper
            reserved = self._added(epsilon) * (1 + 1e-6)
        raise UseError(
            f"a cap of {self.cap} overflows too often: (1 + e^epsilon) times {self.overflow:.3g} "
            f"exceeds delta = {delta_up(delta)} at every epsilon that the noise allows",
            hint="raise the cap, or sample less",
        )

    def _added(self, epsilon: float) -> float:
        return (1 + math.exp(min(epsilon, 700.0))) * self.overflow

    def dp_event(self) -> Any:
        return self.untruncated.dp_event()
