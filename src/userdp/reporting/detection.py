"""How well the strongest attacker can do against a model: the one figure of the public page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from userdp.accounting.implemented import implemented_delta
from userdp.accounting.mechanisms import NoisySteps
from userdp.accounting.tradeoff import DeltaCurve
from userdp.claims import Claim
from userdp.reporting.curves import Plot, Series
from userdp.reporting.numbers import epsilon_text
from userdp.reporting.run_facts import RunFacts
from userdp.vocabulary import epsilon_up

_RATES = tuple((1 - math.cos(math.pi * i / 64)) / 2 for i in range(65))
"""False-alarm rates, dense at both ends, where the curves bend."""
_FRACTIONS = (0.0, 0.04, 0.1, 0.18, 0.28, 0.4, 0.52, 0.66, 0.82, 1.0)
"""Of the claimed ε: where a mechanism's δ is asked. More points would only lower its curve."""
_REFERENCES = (1.0, 8.0)
_MOST_RUNS = 6


def detection_plot(runs: Sequence[RunFacts]) -> Plot | None:
    """Detection at most, at each rate of false alarms: the claims beside chance, ε = 1 and ε = 8.

    Guarantee: each run's curve bounds every attack, see `DeltaCurve.max_true_positive_rate`: by the
    mechanism's own δ(ε) where one mechanism is all of the claim, else by ε and δ alone. The
    claim's corner is where both bounds of (ε, δ) alone meet. The references are drawn at the
    largest δ of the runs.

    Args:
        runs: those with a claim are drawn, six at most.
    """
    private = [run for run in runs if run.private][:_MOST_RUNS]
    if not private:
        return None
    curves = [
        Series(
            name=run.name if len(private) > 1 else f"this claim, ε ≤ {_epsilon(run.claim)}",
            xs=_RATES,
            ys=_bounds(curve_of(run.claim)),
            marked=False,
        )
        for run in private
    ]
    corners = [
        Series(
            name="corner of (ε, δ) alone" if number == 0 else "",
            xs=(x,),
            ys=(1 - x,),
            style=number,
        )
        for number, run in enumerate(private)
        for x in [corner_of(run.guarantee.epsilon, run.guarantee.delta)]
    ]
    delta = max(run.guarantee.delta for run in private)
    references = [
        Series(
            name=f"ε = {epsilon_up(epsilon)}",
            xs=_RATES,
            ys=_bounds(DeltaCurve(epsilons=(epsilon,), deltas=(delta,))),
            marked=False,
            reference=True,
        )
        for epsilon in _REFERENCES
    ]
    chance = Series(name="chance", xs=(0.0, 1.0), ys=(0.0, 1.0), marked=False, reference=True)
    return Plot(
        key="detection",
        title="What the strongest attacker can reach",
        x_label="false alarms: accused, but took no part",
        y_label="detected, of those who took part",
        series=(*curves, *corners, chance, *references),
        x_limits=(0.0, 1.0),
        y_limits=(0.0, 1.02),
        tall=True,
    )


def corner_of(epsilon: float, delta: float) -> float:
    """The rate of false alarms, and of misses, at the corner of the trade-off of (ε, δ).

    Source: Kairouz, Oh and Viswanath 2015, Theorem 2.1.

    >>> round(corner_of(0.0, 0.0), 4), round(corner_of(1.0, 1e-5), 4)
    (0.5, 0.2689)
    """
    shrink = math.exp(-epsilon)
    return (1 - delta) * shrink / (1 + shrink)


def curve_of(claim: Claim) -> DeltaCurve:
    """The pairs (ε, δ) that a finite claim proves: its mechanism's, or its own alone."""
    epsilon, delta = claim.guarantee.epsilon, claim.guarantee.delta
    mechanism = claim.mechanism
    if mechanism is None or not 0 < epsilon < 600:
        return DeltaCurve(epsilons=(epsilon,), deltas=(delta,))
    return _of_mechanism(mechanism, epsilon, delta)


@lru_cache(maxsize=64)
def _of_mechanism(mechanism: NoisySteps, epsilon: float, delta: float) -> DeltaCurve:
    epsilons = [epsilon * fraction for fraction in _FRACTIONS[:-1]]
    deltas = [
        implemented_delta(mechanism.delta(one).upper, one, steps=mechanism.steps)
        for one in epsilons
    ]
    return DeltaCurve(epsilons=(*epsilons, epsilon), deltas=(*deltas, delta))


def _bounds(curve: DeltaCurve) -> tuple[float, ...]:
    return tuple(curve.max_true_positive_rate(rate) for rate in _RATES)


def _epsilon(claim: Claim) -> str:
    return epsilon_text(claim.guarantee.epsilon)
