"""What a claim means for a person, in numbers and a curve that hold whatever the attacker knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

from userdp.accounting.accountants import calibrate
from userdp.accounting.bracket import implemented_delta
from userdp.accounting.mechanisms import NoisySteps
from userdp.accounting.tradeoff import DeltaCurve, curve_at
from userdp.claims import Claim
from userdp.core.errors import UseError
from userdp.core.vocabulary import require_delta, require_epsilon

FALSE_ALARMS = 0.01
OF_THE_CURVE = "the mechanism's own trade-off curve"
OF_THE_CLAIM = "ε and δ alone"
REFERENCES = (1.0, 8.0)
"""The ε of the curves beside which a single claim's own is drawn."""
MOST_EPSILON = 600.0  # of the search along a curve: beyond it nothing is promised anyway
_FRACTIONS = (0.0, 0.04, 0.1, 0.18, 0.28, 0.4, 0.52, 0.66, 0.82, 1.0)
"""Of an ε: where δ is asked for a curve. More points would only lower it."""


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
        most = min(epsilon, MOST_EPSILON)
        own = curve_at(_delta_of(mechanism), FALSE_ALARMS, most_epsilon=most)
        guess = min(guess, own.best_guess)
        detection = min(detection, own.max_true_positive_rate(FALSE_ALARMS))
    scale = ((1.0, "strong (ε ≤ 1)"), (10.0, "reasonable (1 < ε ≤ 10)"))
    return Meaning(
        factor=math.exp(epsilon) if epsilon < 700 else math.inf,
        best_guess=guess,
        detection=detection,
        bounded_by=OF_THE_CLAIM if mechanism is None else OF_THE_CURVE,
        tier=next((tier for most, tier in scale if epsilon <= most), "weak to none (ε > 10)"),
    )


def curves_of(claims: Sequence[Claim]) -> tuple[list[DeltaCurve], dict[float, DeltaCurve]]:
    """The trade-off curves of finite claims, all of one kind; and of one claim, its references.

    Where each claim is one mechanism's, its curve is the mechanism's own, and a reference is that
    of the same training with the noise that gives it another ε, of `REFERENCES`, at the same δ.
    Where a claim has only an ε and a δ, all curves are the worst that an (ε, δ) admits: curves of
    different kinds cross, and side by side they would mislead.

    Guarantee: each claim's curve bounds every attack, see `DeltaCurve.max_true_positive_rate`.
    """
    told = [(one.guarantee.epsilon, one.guarantee.delta) for one in claims]
    mechanisms = [
        (one.mechanism, epsilon)
        for one, (epsilon, _) in zip(claims, told, strict=True)
        if one.mechanism is not None and 0 < epsilon < MOST_EPSILON
    ]
    if len(mechanisms) < len(claims):
        curves = [DeltaCurve(epsilons=(epsilon,), deltas=(delta,)) for epsilon, delta in told]
    else:
        curves = [_of_mechanism(mechanism, epsilon) for mechanism, epsilon in mechanisms]
    if len(claims) > 1:
        return curves, {}
    delta = told[0][1]
    if not mechanisms:
        return curves, {e: DeltaCurve(epsilons=(e,), deltas=(delta,)) for e in REFERENCES}
    others = {e: _with_epsilon(mechanisms[0][0], e, delta) for e in REFERENCES}
    return curves, {e: _of_mechanism(one, e) for e, one in others.items() if one is not None}


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


def _delta_of(mechanism: NoisySteps) -> Callable[[float], float]:
    """The mechanism's δ(ε), that of the noise as it is drawn."""
    return lambda e: implemented_delta(mechanism.delta(e).upper, e, steps=mechanism.steps)


@lru_cache(maxsize=64)
def _of_mechanism(mechanism: NoisySteps, epsilon: float) -> DeltaCurve:
    epsilons = tuple(epsilon * fraction for fraction in _FRACTIONS)
    return DeltaCurve(epsilons=epsilons, deltas=tuple(map(_delta_of(mechanism), epsilons)))


@lru_cache(maxsize=16)
def _with_epsilon(mechanism: NoisySteps, epsilon: float, delta: float) -> NoisySteps | None:
    """The same training at another ε; None where no noise gives it, as a cap spends all of δ."""
    with suppress(UseError):
        return calibrate(mechanism, target_epsilon=epsilon, target_delta=delta, tolerance=0.01)
    return None
