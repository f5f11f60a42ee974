r"""What ε means to an attacker: the trade-off function of a δ(ε) curve.

A membership test with false-positive rate x (it says "took part" of someone who did not) has a
true-positive rate of at most, for *every* ε >= 0,

    TPR <= δ(ε) + e^ε x              (the definition of DP),
    TPR <= 1 - e^{-ε}(1 - x - δ(ε))  (the same for the complement, data sets exchanged),

so of at most the least over any set of ε; 1 - TPR is the trade-off function f(x) of Dong, Roth and
Su 2022 (arXiv:1905.02383), Proposition 2.12. More ε tighten the bound and none can make it wrong.
δ is convex in e^ε and TPR's bound is linear in (δ, e^ε), so nothing is gained by interpolating
between the ε that were computed.

Proof. An attack accuses on a set S of outputs; P is the law where the user took part, Q where not,
and Q(S) = x. δ(ε) bounds both orders of the two data sets. So P(S) <= e^ε Q(S) + δ(ε), which is the
first line; and Q(S^c) <= e^ε P(S^c) + δ(ε), that is 1 - x <= e^ε (1 - P(S)) + δ(ε), which is the
second. A randomized attack is a mixture of such sets, and both lines are linear in (x, P(S)). Each
pair (ε, δ(ε)) is used as it stands, with a δ that is an upper bound: any finite set of pairs will
do, and no curve between them is assumed. With δ of one order only, one of the two lines would be
unproved. For ε = 0: P(S) - Q(S) <= δ(0), the total variation, so that whoever guesses between two
equally likely worlds is right with probability at most (1 + δ(0)) / 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from userdp.accounting.certified_search import valley
from userdp.core.vocabulary import require_epsilon, require_positive

_Bound = Callable[["DeltaCurve", float], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaCurve:
    """Points (ε, δ) at which a mechanism is (ε, δ)-DP, ε rising, for both orders of the data sets.

    Guarantee: what `max_true_positive_rate` returns bounds every attack on every
    pair of neighbouring data sets, provided each point is a valid guarantee. Rounding is within
    4e-16·(1 + ε) relative, added on the safe side.

    Args:
        epsilons: finite, >= 0, rising.
        deltas: in [0, 1], one for each ε.

    Raises:
        ValueError: the lists are empty, differ in length, or hold a value out of range.

    >>> pure = DeltaCurve(epsilons=(1.0,), deltas=(0.0,))  # a pure 1-DP mechanism
    >>> round(pure.max_true_positive_rate(0.01), 4)
    0.0272
    >>> round(pure.max_true_positive_rate(0.5), 4)
    0.8161
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.epsilons) == len(self.deltas):
            raise ValueError(
                "a curve needs as many deltas as epsilons and at least one, got "
                f"{len(self.epsilons)} epsilons and {len(self.deltas)} deltas"
            )
        for epsilon in self.epsilons:
            require_epsilon(epsilon)
        if any(not a < b for a, b in zip(self.epsilons, self.epsilons[1:], strict=False)):
            raise ValueError("the epsilons of a curve must rise")
        for delta in self.deltas:
            if not 0 <= delta <= 1:
                raise ValueError(f"each delta must be in [0, 1], got {delta!r}")

    def max_true_positive_rate(self, false_positive_rate: float) -> float:
        """The largest true-positive rate of any attack with this false-positive rate.

        Guarantee: an upper bound; at least ``false_positive_rate`` (guessing) and at most 1.

        Args:
            false_positive_rate: in [0, 1].

        Raises:
            ValueError: it is outside [0, 1] (NaN included).

        Source: Dong, Roth and Su 2022, Equation 6 and Proposition 2.12.
        """
        x = false_positive_rate
        if not 0 <= x <= 1:
            raise ValueError(f"false_positive_rate must be in [0, 1], got {x!r}")
        return max(min(1.0, self._small_rates(x), self._large_rates(x)), x)

    def _small_rates(self, x: float) -> float:
        """The least δ(ε) + e^ε x."""
        return min(
            (delta + math.exp(epsilon) * x) * (1 + 4e-16 * (1 + epsilon))
            if epsilon < 700
            else (delta if x == 0 else 1.0)
            for epsilon, delta in zip(self.epsilons, self.deltas, strict=True)
        )

    def _large_rates(self, x: float) -> float:
        """The least 1 - e^{-ε}(1 - x - δ(ε))."""
        return min(
            math.nextafter(
                1 - math.exp(-epsilon) * max(1 - x - delta, 0.0) / (1 + 4e-16 * (1 + epsilon)), 1.0
            )
            for epsilon, delta in zip(self.epsilons, self.deltas, strict=True)
        )

    @property
    def best_guess(self) -> float:
        """The largest probability of guessing right between two equally likely data sets.

        Guarantee: an upper bound; it is (1 + the total variation) / 2, and of an ε above 0 that of
        Kairouz, Oh and Viswanath 2015, Theorem 2.1: (1 + δ e^{-ε}) / (1 + e^{-ε}).
        """
        guesses = [1.0]
        for epsilon, delta in zip(self.epsilons, self.deltas, strict=True):
            shrink = math.exp(-epsilon)  # neither overflows nor loses digits for large ε
            allowance = 1 + 4e-16 * (1 + epsilon)
            guesses.append((1 + delta * shrink) / (1 + shrink) * allowance)
        return max(0.5, min(guesses))


def curve_at(
    delta_of_epsilon: Callable[[float], float],
    false_positive_rate: float,
    *,
    most_epsilon: float,
    turns: int = 11,
) -> DeltaCurve:
    """The few points of the curve that matter for one false-positive rate, and ε = 0.

    Guarantee: as `DeltaCurve`; the search below only makes `max_true_positive_rate` small. Both of
    its bounds have a single valley in ε: the first is convex in e^ε, and of the second
    ``(1 - x - δ) / e^ε`` is a concave function of e^ε over a linear one. So golden sections find
    the lowest place of each, to ``most_epsilon`` / 200.

    Args:
        delta_of_epsilon: certified upper bound of δ at an ε >= 0, in [0, 1].
        false_positive_rate: x, in [0, 1].
        most_epsilon: where the search ends; > 0. The ε of a claim with δ < x is beyond the valley
            of the first bound.
        turns: of each search, one δ each.

    Raises:
        ValueError: a parameter is out of range, or the function returned a value outside [0, 1].
    """
    require_positive("most_epsilon", most_epsilon)
    known: dict[float, float] = {}

    def at(epsilon: float) -> DeltaCurve:
        if epsilon not in known:
            known[epsilon] = delta_of_epsilon(epsilon)
        return DeltaCurve(epsilons=(epsilon,), deltas=(known[epsilon],))

    at(0.0)
    at(most_epsilon)
    for bound in (DeltaCurve._small_rates, DeltaCurve._large_rates):

        def rate(epsilon: float, bound: _Bound = bound) -> float:
            return bound(at(epsilon), false_positive_rate)

        valley(rate, 0.0, most_epsilon, turns=turns)
    epsilons = tuple(sorted(known))
    return DeltaCurve(epsilons=epsilons, deltas=tuple(known[epsilon] for epsilon in epsilons))
