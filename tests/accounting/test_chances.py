"""How likely each number of a user's items is drawn: the accountant's floats, the proof's balls."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from userdp.accounting.contour import pair_of
from userdp.accounting.item_count_laws import Binomial, Hypergeometric

LAWS = [
    Binomial(trials=1, probability=2.0**-60),
    Binomial(trials=1, probability=2.0**-20),
    Binomial(trials=5, probability=2.0**-3),
    Binomial(trials=5, probability=1 - 2.0**-3),
    Hypergeometric(population=10**9 + 3, marked=3, draws=1),
    Hypergeometric(population=20, marked=5, draws=8),
    Hypergeometric(population=13, marked=5, draws=8),
]
IDS = [f"{type(law).__name__} {number}" for number, law in enumerate(LAWS)]


def exact(law, k):
    """By counting, and without rounding."""
    if isinstance(law, Binomial):
        p = Fraction(law.probability)
        return math.comb(law.trials, k) * p**k * (1 - p) ** (law.trials - k)
    others = math.comb(law.population - law.marked, law.draws - k)
    return Fraction(math.comb(law.marked, k) * others, math.comb(law.population, law.draws))


@pytest.mark.parametrize("law", LAWS, ids=IDS)
def test_the_chance_of_any_participation_is_an_upper_bound_and_tight(law):
    for steps in (1, 3):
        pair = pair_of(law, noise_multiplier=1.0, steps=steps)
        whole = min(steps * (1 - exact(law, 0)), Fraction(1))
        assert whole <= Fraction(pair.participation) <= whole * (1 + Fraction(1, 10**10))


@pytest.mark.parametrize("law", LAWS, ids=IDS)
def test_the_proofs_chances_and_their_ratios_enclose_the_exact_ones(law):
    flint = pytest.importorskip("flint", reason="the extra `proof` is not installed")
    from userdp.accounting.proof.step_law import chance, growth

    def encloses(ball, value):
        with flint.ctx.workprec(2_000):  # next to no rounding of the test's own
            return (ball * value.denominator - value.numerator).contains(0)

    with flint.ctx.workprec(128):
        for k in range(law.most + 1):
            assert encloses(chance(law, k), exact(law, k))
            assert chance(law, k).rel_accuracy_bits() > 100
            if k < law.most:
                assert encloses(growth(law, k), exact(law, k + 1) / exact(law, k))
