"""The best of K candidates: the bound beside hand numbers and exact laws of small winners."""

import itertools
import math
import random

import numpy as np
import pytest
from scipy import special, stats

from tests.speed import fast_then_slow
from userdp.accounting import rdp
from userdp.accounting.private_selection import (
    PoissonNumber,
    TruncatedNegativeBinomial,
    pure_divergence,
    selected_curve,
)

ORDERS = (1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 64.0, 256.0)
LAWS = [
    *(TruncatedNegativeBinomial.of_mean(m, eta=e) for e in (1.0, 0.5, 0.0, -0.5) for m in (2, 10)),
    PoissonNumber(mu=0.5),
    PoissonNumber(mu=6.0),
]


def number_of_candidates(law, most=4000):
    """P[K = k] for k = 0, 1, …, from the definitions and not from the code."""
    if isinstance(law, PoissonNumber):
        return [math.exp(-law.mu + k * math.log(law.mu) - math.lgamma(k + 1)) for k in range(200)]
    weights, weight = [0.0], 1.0
    for k in range(1, most):
        weight *= (1 - law.gamma) * ((k - 1 + law.eta) / k if k > 1 else 1.0)
        weights.append(weight)
    total = math.fsum(weights)
    return [w / total for w in weights]


def winner(base, counts):
    """The law of the largest of K draws; the last outcome is that of K = 0."""
    powers = np.minimum([0.0, *itertools.accumulate(base)], 1.0)[:, None] ** np.arange(len(counts))
    return [*(np.diff(powers, axis=0) @ np.array(counts)).tolist(), counts[0]]


def renyi(left, right, order):
    pairs = [(p, q) for p, q in zip(left, right, strict=True) if p]
    logs = [order * math.log(p) + (1 - order) * math.log(q) for p, q in pairs]
    return float(special.logsumexp(logs)) / (order - 1)


def worst(left, right, order):
    return max(renyi(left, right, order), renyi(right, left, order))


def pair(seed, outcomes=5):
    """Two laws of a score, neither far from the other."""
    draw = random.Random(seed)
    left = [draw.random() ** 3 + 1e-4 for _ in range(outcomes)]
    right = [value * math.exp(draw.uniform(-0.8, 0.8)) for value in left]
    return ([v / sum(left) for v in left], [v / sum(right) for v in right])


@pytest.mark.parametrize("law", fast_then_slow(LAWS, fast=4), ids=str)
def test_invariant_8_the_exact_law_of_the_winner_stays_below_the_bound_and_the_twin_is_caught(law):
    """The twin, the base price without the terms for choosing, is broken by some pair of laws."""
    counts, broken = number_of_candidates(law), 0
    for seed in range(12):
        left, right = pair(seed)
        base = {order: worst(left, right, order) for order in ORDERS}
        bound = selected_curve(base, law)
        winners = winner(left, counts), winner(right, counts)
        assert math.fsum(winners[0]) == pytest.approx(1, abs=1e-6)
        reached = {order: worst(*winners, order) for order in ORDERS}
        assert all(reached[order] <= bound[order] + 1e-6 for order in ORDERS)
        broken += any(reached[order] > base[order] + 1e-6 for order in ORDERS)
    assert broken


def test_invariant_8_twin_a_fixed_number_of_candidates_at_the_base_price_is_caught():
    """Randomised response, best of 10: what sees few candidates at their best pays ten times."""
    base_epsilon = 0.5
    p = 1 / (1 + math.exp(-base_epsilon))
    left, right = [p, 1 - p], [1 - p, p]
    ten = [0.0] * 10 + [1.0]
    low, high = winner(left, ten)[0], winner(right, ten)[0]
    assert math.log(low / high) == pytest.approx(10 * base_epsilon)
    base = {order: worst(left, right, order) for order in ORDERS}
    best = winner(left, ten), winner(right, ten)
    assert worst(*best, 256.0) > 5 * base[256.0]
    # nor would the bound for a random number with the same mean cover it
    law = TruncatedNegativeBinomial.of_mean(10, eta=1.0)
    assert worst(*best, 256.0) > selected_curve(base, law)[256.0]


def test_theorem_2_by_hand():
    """λ = 2, λ̂ = 4, η = 1, γ = 1/8: 0.3 + 2·(3/4)·0.5 + 2·log(8)/4 + log(8)/1."""
    law = TruncatedNegativeBinomial(eta=1.0, gamma=0.125)
    found = selected_curve({2.0: 0.3, 4.0: 0.5}, law)
    assert found[2.0] == pytest.approx(0.3 + 0.75 + 1.5 * math.log(8), rel=1e-9)
    # η = 0: E[K] = (1/γ - 1) / log(1/γ), the power is 1
    law = TruncatedNegativeBinomial(eta=0.0, gamma=0.125)
    mean = 7 / math.log(8)
    found = selected_curve({2.0: 0.3, 4.0: 0.5}, law)[4.0]
    assert found == pytest.approx(0.5 + 0.375 + math.log(8) / 4 + math.log(mean) / 3, rel=1e-9)


def test_theorem_6_by_hand_is_at_most_what_is_charged():
    curve = {2.0: 0.01, 64.0: 0.05}
    close = math.log(2)  # 1 + 1/(λ-1) at λ = 2
    printed = 0.01 + 8 * rdp.delta_of_curve(curve, close) + math.log(8)
    charged = selected_curve(curve, PoissonNumber(mu=8.0))[2.0]
    assert printed <= charged == pytest.approx(math.log(math.exp(printed) + math.exp(-8)), rel=1e-9)


def accepted(drawn, counts):
    """Whether a chi-square test on eight cells of about the same chance lets the draws pass."""
    edges = np.unique(np.searchsorted(np.cumsum(counts), np.arange(1, 8) / 8))
    chances = np.bincount(np.searchsorted(edges, np.arange(len(counts))), weights=counts)
    observed = np.bincount(np.searchsorted(edges, drawn), minlength=len(chances))
    return stats.chisquare(observed, chances / chances.sum() * len(drawn)).pvalue > 1e-6


DRAWN = [
    *(TruncatedNegativeBinomial.of_mean(4, eta=eta) for eta in (1.0, 0.0, -0.5)),
    PoissonNumber(mu=3.7),
]


@pytest.mark.parametrize("law", DRAWN, ids=str)
def test_what_is_drawn_is_the_law_and_another_law_is_caught(law):
    drawn = [law.draw() for _ in range(1500)]
    assert accepted(drawn, number_of_candidates(law))
    other = TruncatedNegativeBinomial.of_mean(6.5, eta=0.3)
    assert not accepted(drawn, number_of_candidates(other))


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0, 20.0])
def test_a_pure_answer_is_priced_as_randomised_response(epsilon):
    p, q = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    for order in (1.1, 2.0, 10.0):
        bound = pure_divergence(order, epsilon)
        assert renyi([p, q], [q, p], order) <= bound + 1e-12
        assert bound <= min(epsilon, renyi([p, q], [q, p], order) + 1e-9)
