"""What a claim means for a person, in numbers that hold whatever the attacker knows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

from userdp.accounting.implemented import implemented_delta
from userdp.accounting.mechanisms import NoisySteps
from userdp.accounting.tradeoff import DeltaCurve, curve_at
from userdp.claims import Claim
from userdp.vocabulary import require_delta, require_epsilon

FALSE_ALARMS = 0.01
OF_THE_CURVE = "the mechanism's own trade-off curve"
OF_THE_CLAIM = "ε and δ alone"
_MOST_EPSILON = 600.0  # of the search along a curve: beyond it nothing is promised anyway


@dataclass(frozen=True, kw_only=True, slots=True)
class Meaning:
    """Bounds on anybody who looks at the released output and guesses whether a user took part.

    Guarantee: they hold for every attacker, one who knows all other data included. Each is
    rounded up.

    Args:
        factor: e^ε: how many times likelier an output may become by one user's part.
        best_guess: probability of guessing right, where both answers are equally likely before.
        detection: probability of noticing a user who took part, by a test that accuses a user
            who did not with probability `FALSE_ALARMS`.
        bounded_by: `OF_THE_CURVE` or `OF_THE_CLAIM`: what both are computed from.
        tier: the scale of Ponomareva et al. 2023, "How to DP-fy ML".
    """

    factor: float
    best_guess: float
    detection: float
    bounded_by: str
    tier: str


def meaning_of_claim(claim: Claim) -> Meaning | None:
    """What a claim means; None where nothing is claimed. Every page and command asks this.

    One mechanism's claim is judged by its whole trade-off curve. A claim that was put together from
    several (runs, queries, a selection) is an (ε, δ) and nothing else, so that only the worst pair
    of distributions with that (ε, δ) bounds it; `Meaning.bounded_by` says which it is.
    """
    guarantee = claim.guarantee
    if math.isinf(guarantee.epsilon):
        return None
    return meaning_of(guarantee.epsilon, guarantee.delta, claim.mechanism)


@lru_cache(maxsize=64)
def meaning_of(epsilon: float, delta: float, mechanism: NoisySteps | None = None) -> Meaning:
    """The bounds that (ε, δ)-DP implies, or those of a mechanism that is all of the claim.

    Args:
        epsilon: of the claim; finite.
        delta: of the claim, in [0, 1).
        mechanism: what the claim prices, if it is one mechanism.

    Source: Kairouz, Oh and Viswanath 2015, Theorem 2.1; of a mechanism's curve, the proof in
    `userdp.accounting.tradeoff`.

    >>> round(meaning_of(0.0, 1e-9).best_guess, 4)
    0.5
    """
    require_epsilon(epsilon)
    if delta != 0:
        require_delta(delta)
    curve = DeltaCurve(epsilons=(epsilon,), deltas=(delta,))
    guess, detection = curve.best_guess, curve.max_true_positive_rate(FALSE_ALARMS)
    if mechanism is not None and epsilon > 0:
        own = curve_at(
            lambda e: implemented_delta(mechanism.delta(e).upper, e, steps=mechanism.steps),
            FALSE_ALARMS,
            most_epsilon=min(epsilon, _MOST_EPSILON),
        )
        guess = min(guess, own.best_guess)
        detection = min(detection, own.max_true_positive_rate(FALSE_ALARMS))
    return Meaning(
        factor=math.exp(epsilon) if epsilon < 700 else math.inf,
        best_guess=guess,
        detection=detection,
        bounded_by=OF_THE_CLAIM if mechanism is None else OF_THE_CURVE,
        tier=_tier(epsilon),
    )


def percent_up(probability: float) -> str:
    """A probability in per cent with two digits, rounded up.

    >>> percent_up(0.99966465), percent_up(0.5)
    ('99.97 %', '50.00 %')
    """
    hundred = Decimal(probability) * 100
    return f"{hundred.quantize(Decimal('0.01'), rounding=ROUND_CEILING)} %"


def factor_up(factor: float) -> str:
    """A factor with three significant digits, rounded up.

    >>> factor_up(2980.96), factor_up(2.71828), factor_up(1e9)
    ('2,990', '2.72', '1.00e+9')
    """
    if math.isinf(factor):
        return "∞"
    exponent = math.floor(math.log10(factor)) - 2
    rounded = Decimal(factor).quantize(Decimal(1).scaleb(exponent), rounding=ROUND_CEILING)
    return f"{rounded:.2e}" if rounded >= 10**6 else f"{rounded:,f}"


def _tier(epsilon: float) -> str:
    if epsilon <= 1:
        return "strong (ε ≤ 1)"
    return "reasonable (1 < ε ≤ 10)" if epsilon <= 10 else "weak to none (ε > 10)"
