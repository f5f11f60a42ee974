"""Queries with pure differential privacy: Laplace, exponential mechanism, AboveThreshold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from userdp.accounting.bracket import Bracket
from userdp.accounting.mechanisms.base import Mechanism
from userdp.vocabulary import Adjacency, require_delta, require_epsilon, require_positive

ACCOUNTANT = "closed-form"
_UP, _DOWN = 1 + 1e-14, 1 - 1e-14  # a handful of roundings of 1.1e-16 each


@dataclass(frozen=True, kw_only=True, slots=True)
class PureQuery(Mechanism):
    """A query that is (ε, 0)-DP, priced as randomised response, which dominates every such query.

    Guarantee: every (ε, 0)-DP query can be simulated from randomised response with the same ε
    (Kairouz, Oh & Viswanath 2015, Theorem 3.4), so the price is an upper bound for all of
    them, and exact for randomised response itself. Use it for a Laplace query of scale b and
    sensitivity Δ (ε = Δ/b), the exponential mechanism, and AboveThreshold (its total ε; Dwork &
    Roth 2014, Theorem 3.23).

    Args:
        pure_epsilon: ε of the single query; > 0, finite.
        measured_under: the adjacency that ``pure_epsilon`` belongs to.

    Raises:
        UseError: ``pure_epsilon`` is out of its range.
    """

    pure_epsilon: float
    measured_under: Adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        require_positive("pure_epsilon", self.pure_epsilon, at_most=700.0)

    @property
    def adjacency(self) -> Adjacency:
        return self.measured_under

    def delta(self, epsilon: float) -> Bracket:
        """δ(ε) = max(0, (e^{ε₀} - e^ε) / (1 + e^{ε₀}))."""
        gap = self.pure_epsilon - require_epsilon(epsilon)
        if gap <= 0:
            return Bracket(lower=0.0, upper=0.0, accountant=ACCOUNTANT)
        value = -math.expm1(-gap) / (1 + math.exp(-self.pure_epsilon))
        return Bracket(lower=value * _DOWN, upper=min(1.0, value * _UP), accountant=ACCOUNTANT)

    def epsilon(self, delta: float) -> Bracket:
        """The inverse: ε = ε₀ + log(1 - δ(1 + e^{-ε₀})), at least 0."""
        inner = require_delta(delta) * (1 + math.exp(-self.pure_epsilon))
        if inner >= 1:
            return Bracket(lower=0.0, upper=0.0, accountant=ACCOUNTANT)
        value = max(0.0, self.pure_epsilon + math.log1p(-inner))
        slack = 1e-14 * self.pure_epsilon / (1 - inner)
        return Bracket(
            lower=max(0.0, value - slack),
            upper=min(self.pure_epsilon, value + slack) if value else 0.0,
            accountant=ACCOUNTANT,
        )

    def dp_event(self) -> Any:
        """Randomised response between two answers, as a ``DpEvent``."""
        from userdp.accounting import dp_accounting_backend

        return dp_accounting_backend.randomised_response_event(self.pure_epsilon)
