"""What an (ε, δ) means for a person, in numbers that hold whatever the attacker knows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from userdp.guarantees import require_delta, require_epsilon

FALSE_ALARMS = 0.01


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
        tier: the scale of Ponomareva et al. 2023, "How to DP-fy ML".
    """

    factor: float
    best_guess: float
    detection: float
    tier: str


def meaning_of(epsilon: float, delta: float) -> Meaning:
    """The bounds that (ε, δ)-DP implies.

    Source: Kairouz, Oh and Viswanath 2015, Theorem 2.1: false alarms a and misses b of any test
    satisfy ``a + e^ε b >= 1 - δ`` and ``e^ε a + b >= 1 - δ``.

    >>> round(meaning_of(0.0, 1e-9).best_guess, 4)
    0.5
    """
    require_epsilon(epsilon)
    require_delta(delta)
    # 1 / (1 + e^-ε) and e^-ε neither overflow nor lose digits for large ε.
    shrink = math.exp(-epsilon)
    guess = (1 + delta * shrink) / (1 + shrink)
    grown = math.exp(epsilon) if epsilon < 700 else math.inf
    detection = min(grown * FALSE_ALARMS + delta, 1 - shrink * (1 - delta - FALSE_ALARMS))
    return Meaning(
        factor=grown, best_guess=guess, detection=min(1.0, detection), tier=_tier(epsilon)
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
