r"""A Rényi filter: one budget for releases that are chosen one after another, each by earlier ones.

**What it is.** An order α and a capacity R are fixed before the first release. Each release then
says what it costs beforehand: an upper bound ρ_i of its Rényi divergence of order α, of both
directions and for all neighbours, given whatever was released before. A release that would take
Σρ_i beyond R is refused. What is released, how often, at which noise and when to stop may be chosen
by all earlier releases (Feldman and Zrnic 2021, Theorem 3.1; Lécuyer 2021, Theorem 1).

**Why it holds.** Let P and Q be the laws of all releases on two neighbouring data sets, h_i the
first i of them, and Z_i = P(h_i)/Q(h_i). Given h_{i-1}, the next mechanism and its ρ_i are fixed,
so

.. math:: E_Q[Z_i^α \mid h_{i-1}] \le Z_{i-1}^α \, e^{(α-1) ρ_i(h_{i-1})} ,

and Z_i^α e^{-(α-1)(ρ_1 + … + ρ_i)} is a supermartingale under Q that begins at 1. The filter keeps
the sum in the exponent at most R on every path, wherever it ends (Fatou, if it never does), so that
E_Q[Z^α] ≤ e^{(α-1)R}: everything together is (α, R)-Rényi-DP, and hence

.. math:: \Big(ε,\; e^{(α-1)(R-ε)} \frac{(α-1)^{α-1}}{α^α}\Big)\text{-DP}

(Canonne, Kamath and Steinke 2020, Proposition 12). R is the capacity at which that δ is the
budget's share for it. There is a single order: the least of several filters, chosen at the end, is
no filter.

**What has only an (ε_i, δ_i)** (Whitehouse, Ramdas, Rogers and Wu 2023, Theorem 2 and after). By
Kairouz, Oh and Viswanath 2015, Theorem 3.4, its laws on the two data sets are
P_i = (1-δ_i) P'_i + δ_i P''_i and Q_i = (1-δ_i) Q'_i + δ_i Q''_i, where P'_i and Q'_i are within
e^{ε_i} of each other. The parts in which nothing falls to P'' have on each path the same weight
w = Π(1-δ_i) in both laws, so that for any set S

.. math:: P(S) - e^ε Q(S) \le P(\text{some } P'') + \sum_{h \in S} w(h) (P'(h) - e^ε Q'(h))_+
          \le \sum_i δ_i + δ_R ,

the sum taken on the worst path. So it costs the divergence of (ε_i, 0)-DP, which randomised
response bounds, and δ_i of a share of δ that is reserved for that at opening.

**The noise as it is drawn** is within τ = N·2^-149 of a Gaussian over at most N steps in all
(`userdp.noise.gaussian`), which takes (1 + e^ε) τ of δ: a share of 2^-40 is set aside for it.

What is not done: a filter by privacy-loss distributions. Stopping at the first place where the
composed (ε, δ) would be exceeded is none (Regehr et al., arXiv:2602.15815), and a Gaussian filter
(Koskela et al. 2023) gains nothing from sampling, since the Gaussian that dominates a subsampled
step is that of the step without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from userdp.accounting import rdp
from userdp.accounting.bracket import suffices
from userdp.accounting.certified_search import bisect
from userdp.accounting.item_count_laws import Binomial
from userdp.accounting.mechanisms import Mixture, NoisySteps
from userdp.accounting.private_selection import pure_divergence
from userdp.core.errors import UseError
from userdp.core.vocabulary import (
    delta_up,
    epsilon_up,
    require_delta,
    require_positive,
)
from userdp.noise.gaussian import distance

ACCOUNTANT = "renyi-filter"
MOST_STEPS = 10**9
"""Noisy steps that one filter admits in all: far more than anybody trains, and priced from the
start."""

_NOISE_SHARE = 2.0**-40
_UP, _DOWN = 1 + 1e-14, 1 - 1e-14  # a handful of roundings of 1.1e-16 each


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a release takes from a filter.

    Args:
        rho: an upper bound of its Rényi divergence at the filter's order; >= 0, or infinite.
        delta: of what is known by its (ε, δ) only; else 0.
        steps: noisy steps, or their expectation where their number is random.
    """

    rho: float
    delta: float = 0.0
    steps: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RenyiFilter:
    """A total (ε, δ), and how releases are counted against it; fixed before the first of them.

    Guarantee: all releases together are (``epsilon``, ``delta``)-DP if each was charged beforehand
    with a `Cost` that bounds it given all earlier ones, and `admits` held after each charge. That
    is the claim from the first release to the last, whatever was chosen and however much was spent.

    Args:
        epsilon: of everything together, > 0.
        delta: of everything together, in (0, 1).
        order: α, greater than 1, at most 1024.
        reserved: the share of ``delta`` for releases that are known by an (ε_i, δ_i) only, such as
            runs whose sampling has no Rényi divergence here; in [0, 1).

    Raises:
        UseError: a number is out of its range, or the budget has no capacity at this order.
    """

    epsilon: float
    delta: float
    order: float
    reserved: float = 0.0

    def __post_init__(self) -> None:
        require_positive("epsilon", self.epsilon)
        require_delta(self.delta)
        if not 1 < self.order <= 1024:
            raise UseError(f"the order must be greater than 1 and at most 1024, got {self.order!r}")
        if not 0 <= self.reserved < 1:
            raise UseError(f"reserved must be at least 0 and less than 1, got {self.reserved!r}")
        if not suffices(_NOISE_SHARE, self.epsilon, self.delta, distance(MOST_STEPS)):
            raise UseError(
                f"epsilon = {epsilon_up(self.epsilon)} at delta = {delta_up(self.delta)} is "
                "beyond what the noise as it is drawn can promise: it is not exactly Gaussian",
                hint="take a smaller epsilon; one of more than 40 protects nobody",
            )
        if not self.capacity > 0:
            raise UseError(
                f"a filter of order {self.order:g} has no room below epsilon = "
                f"{epsilon_up(self.epsilon)} at delta = {delta_up(self.delta)}: nothing could ever "
                "be released",
                hint="leave the order out, or take a larger one; or raise epsilon",
            )

    @classmethod
    def opened(
        cls, *, epsilon: float, delta: float, order: float | None = None, reserved: float = 0.0
    ) -> Self:
        """A filter of the order that lets the most Gaussian noise through, unless one is given."""
        require_positive("epsilon", epsilon)
        require_delta(delta)
        if order is None:
            order = default_order(epsilon, delta * (1 - reserved))
        return cls(epsilon=epsilon, delta=delta, order=order, reserved=reserved)

    @property
    def capacity(self) -> float:
        """R: what the ``rho`` of all releases may add up to, rounded down."""
        share = self.delta * (1 - self.reserved - _NOISE_SHARE) * _DOWN
        if not share > 0:
            return 0.0
        least = rdp.epsilon_of_curve({self.order: 0.0}, share)
        capacity = (self.epsilon - least) * _DOWN
        while capacity > 0 and rdp.epsilon_of_curve({self.order: capacity}, share) > self.epsilon:
            capacity *= _DOWN
        return capacity

    @property
    def reserved_delta(self) -> float:
        """What the ``delta`` of all releases may add up to, rounded down."""
        return self.delta * self.reserved * _DOWN

    def admits(self, costs: Iterable[Cost]) -> bool:
        """Whether releases of these costs, all of them together, stay within the budget."""
        costs = list(costs)
        return (
            self.spent(costs) <= self.capacity
            and math.fsum(cost.delta for cost in costs) * _UP <= self.reserved_delta
            and math.fsum(cost.steps for cost in costs) * _UP <= MOST_STEPS
        )

    def spent(self, costs: Iterable[Cost]) -> float:
        """Σρ_i, rounded up."""
        return math.fsum(cost.rho for cost in costs) * _UP

    def left(self, costs: Iterable[Cost]) -> float:
        """What is left of the capacity after these releases; at least 0."""
        return max(0.0, self.capacity - self.spent(costs))

    def of_steps(self, mechanism: NoisySteps) -> Cost | None:
        """The cost of noisy steps; None where their Rényi divergence is not known here.

        Args:
            mechanism: the pair that dominates them; a mixture of Gaussians with a binomial law.
        """
        if not isinstance(mechanism, Mixture) or not isinstance(mechanism.law, Binomial):
            return None
        rho = rdp.of_one_step(mechanism, mechanism.law, self.order)
        return Cost(rho=rho * mechanism.steps * _UP, steps=mechanism.steps)

    def of_guarantee(self, epsilon: float, delta: float) -> Cost:
        """The cost of something of which only its (ε, δ) is known; it pays for its own noise."""
        if not epsilon <= 700:
            return Cost(rho=math.inf, delta=delta)
        rho = pure_divergence(self.order, epsilon) if epsilon > 0 else 0.0
        return Cost(rho=rho, delta=delta)


def default_order(epsilon: float, delta: float) -> float:
    """The order at which a filter of (ε, δ) lets the most Gaussian steps through.

    Gaussian noise costs ρ = αc for some c, so this is the α that makes R/α largest; for sampled
    steps it is close to the best one (docs/budgets.md). It is a function of the budget only: an
    order that was chosen by what was released is none that was fixed before.

    >>> round(default_order(8.0, 1e-6), 2)
    4.42
    """
    require_positive("epsilon", epsilon)
    require_delta(delta)

    def room(order: float) -> float:
        return (epsilon - rdp.epsilon_of_curve({order: 0.0}, delta)) / order

    def falls(log_excess: float) -> bool:
        order = 1 + math.exp(log_excess)
        return room(order) >= room(order * (1 + 1e-6))

    order = 1 + math.exp(bisect(falls, math.log(1e-2), math.log(1023), absolute=1e-4))
    return round(order, 4)
