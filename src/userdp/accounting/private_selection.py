r"""The price of the best of a random number of candidates, in Rényi DP.

The base mechanism draws a candidate from a public grid, trains it and scores it under DP; its
output is the candidate, the weights and the score. It runs K times, and only the output with the
best score is released. If the base is (λ, ε(λ))-RDP at every order λ of a curve, then for
K from a truncated negative binomial law, with any λ̂ >= 1 (Papernot and Steinke 2022, Theorem 2)

.. math:: ε'(λ) = ε(λ) + (1+η)(1-1/λ̂) ε(λ̂) + (1+η) \log(1/γ)/λ̂ + \log(E[K])/(λ-1),

and for K from a Poisson law of mean μ (Theorem 6), if the base is (log(1+1/(λ-1)), δ̂)-DP,

.. math:: ε'(λ) = \log(e^{-μ} + μ e^{(λ-1)(ε(λ) + μ δ̂)}) / (λ-1).

Its e^{-μ} is for K = 0, an outcome of its own that is equally likely on both data sets; the printed
form, without it, is ε(λ) + μ δ̂ + log(μ)/(λ-1).

No such bound holds for a fixed K: the base's ε may be paid K times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from userdp.accounting import rdp
from userdp.accounting.bracket import Bracket
from userdp.accounting.laws import Binomial
from userdp.accounting.mechanisms import Mixture, NoisySteps
from userdp.accounting.repetitions import Repetitions, TruncatedNegativeBinomial
from userdp.errors import UseError
from userdp.vocabulary import require_delta, require_positive

ACCOUNTANT = "rdp-private-selection"
_UP = 1 + 1e-12

Curve = Mapping[float, float]
"""Upper bounds of the Rényi divergence, both directions, by order."""


def pure_divergence(order: float, pure_epsilon: float) -> float:
    """An upper bound of the Rényi divergence of any (ε, 0)-DP answer at this order.

    Randomised response dominates them all (Kairouz, Oh and Viswanath 2015, Theorem 3.4): with
    p = e^ε/(1+e^ε) the moment is p^α (1-p)^{1-α} + (1-p)^α p^{1-α}.

    >>> round(pure_divergence(2.0, 1.0), 6), round(pure_divergence(1e6, 1.0), 4)
    (0.735326, 1.0)
    """
    require_positive("pure_epsilon", pure_epsilon, at_most=700.0)
    if not 1 < order < math.inf:
        raise UseError(f"order must be finite and greater than 1, got {order!r}")
    # log of the moment: log p + (α-1)ε + log(1 + e^{-(2α-1)ε})
    log_p = -math.log1p(math.exp(-pure_epsilon))
    tail = math.log1p(math.exp(-(2 * order - 1) * pure_epsilon))
    value = pure_epsilon + (log_p + tail) / (order - 1)
    return min(pure_epsilon, max(value, 0.0) * _UP + 1e-15 / (order - 1))


def base_curve(
    mechanisms: Sequence[NoisySteps],
    *,
    score_epsilon: float,
    orders: Sequence[float] = rdp.ORDERS,
) -> dict[float, float]:
    """RDP of: draw one of ``mechanisms`` by public chance, run it, and score it under DP.

    Guarantee: an upper bound at each order. Which mechanism was drawn is part of the output, so
    the worst of them bounds the mixture; the score composes with it.

    Args:
        mechanisms: training, for each plan of the grid; at least one.
        score_epsilon: the score is (ε, 0)-DP per user, add-or-remove.
        orders: each above 1.

    Raises:
        UseError: one of them has no Rényi divergence here, see `has_curve`.
    """
    if not mechanisms:
        raise UseError("a selection needs at least one candidate, got none")
    curves = [_training_curve(mechanism, orders) for mechanism in mechanisms]
    return {
        order: max(curve[order] for curve in curves) + pure_divergence(order, score_epsilon)
        for order in orders
    }


def has_curve(mechanism: NoisySteps) -> bool:
    """Whether its Rényi divergences are known: steps with a binomial law in clip norms."""
    return (
        isinstance(mechanism, Mixture)
        and isinstance(mechanism.law, Binomial)
        and mechanism.scale == 1
    )


def _training_curve(mechanism: NoisySteps, orders: Sequence[float]) -> dict[float, float]:
    if not has_curve(mechanism):
        raise UseError(f"a choice among steps of kind {type(mechanism).__name__} has no claim here")
    assert isinstance(mechanism, Mixture)
    assert isinstance(mechanism.law, Binomial)
    return rdp.step_curve(
        sampling_probability=mechanism.law.probability,
        noise_multiplier=mechanism.noise_multiplier,
        group_size=mechanism.law.trials,
        steps=mechanism.steps,
        orders=orders,
    )


def selected_curve(base: Curve, repetitions: Repetitions) -> dict[float, float]:
    """RDP of the best of a random number of independent runs of a base mechanism, by order.

    Guarantee: an upper bound at each order of ``base``, if each run is independent, their number
    is from ``repetitions`` and nothing of the others, their number included, is released.

    Source: Papernot and Steinke 2022 (arXiv:2110.03620), Theorems 2 and 6.
    """
    if isinstance(repetitions, TruncatedNegativeBinomial):
        power, log_gamma = 1 + repetitions.eta, math.log(repetitions.gamma)
        choosing = -log_gamma  # λ̂ = 1
        for order, rho in base.items():
            choosing = min(choosing, (1 - 1 / order) * rho - log_gamma / order)
        extra, log_mean = power * choosing, math.log(repetitions.mean)
        return {order: (rho + extra + log_mean / (order - 1)) * _UP for order, rho in base.items()}
    mu = repetitions.mu
    curve = {}
    for order, rho in base.items():
        close = math.log1p(1 / (order - 1)) * (1 - 1e-15)
        inner = (order - 1) * (rho + mu * rdp.delta_of_curve(base, close)) + math.log(mu)
        total = max(inner, -mu) + math.log1p(math.exp(-abs(inner + mu)))
        curve[order] = max(total, 0.0) / (order - 1) * _UP
    return curve


def selection_epsilon(base: Curve, repetitions: Repetitions, delta: float) -> Bracket:
    """ε of the winner at ``delta``, from above: lower is 0.

    Args:
        base: of the base mechanism, see `base_curve`.
        repetitions: the law of K.
        delta: in (0, 1).
    """
    upper = rdp.epsilon_of_curve(selected_curve(base, repetitions), require_delta(delta))
    return Bracket(lower=0.0, upper=upper, accountant=ACCOUNTANT, note="an upper bound only")
