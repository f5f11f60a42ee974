"""Compositions against dp-accounting, brute force and themselves."""

from __future__ import annotations

import math

import pytest

from userdp.accounting.contour import OneWay
from userdp.accounting.mechanisms import (
    Composition,
    Mixture,
    PureQuery,
    binomial_steps,
    gaussian_steps,
)
from userdp.errors import UseError
from userdp.vocabulary import Adjacency

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

GRID = 2e-3  # of dp-accounting's losses


def users(steps: int, q: float = 0.01, sigma: float = 1.0) -> Mixture:
    return binomial_steps(sampling_probability=q, noise_multiplier=sigma, steps=steps)


def mixture(pessimistic: bool, sigma: float, weights: list[float], steps: int):  # type: ignore[no-untyped-def]
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_mixture_gaussian_mechanism(
        sigma,
        [float(k) for k in range(len(weights))],
        weights,
        pessimistic_estimate=pessimistic,
        value_discretization_interval=GRID,
    ).self_compose(steps)


def response(pessimistic: bool, epsilon: float):  # type: ignore[no-untyped-def]
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_randomized_response(
        2 / (1 + math.exp(epsilon)),
        2,
        pessimistic_estimate=pessimistic,
        value_discretization_interval=GRID,
    )


def test_two_halves_are_the_whole() -> None:
    whole, half = users(600).epsilon(1e-6), users(300)
    found = Composition(parts=(half, half)).epsilon(1e-6)
    assert found.lower <= whole.upper
    assert whole.lower <= found.upper
    assert found.width <= 1e-6 * found.upper


@pytest.mark.slow
def test_pure_queries_beside_training_agree_with_dp_accounting() -> None:
    parts = (users(40, 0.05), PureQuery(pure_epsilon=0.2), PureQuery(pure_epsilon=0.5))
    bounds = [
        mixture(pessimistic, 1.0, [0.95, 0.05], 40)
        .compose(response(pessimistic, 0.2))
        .compose(response(pessimistic, 0.5))
        for pessimistic in (False, True)
    ]
    for epsilon in (0.3, 1.0, 2.0):
        low, high = (bound.get_delta_for_epsilon(epsilon) for bound in bounds)
        found = Composition(parts=parts).delta(epsilon)
        assert low - 1e-13 <= found.lower <= found.upper <= high + 1e-13
        assert high <= 1.3 * low


def test_the_recorded_run_with_three_queries() -> None:
    """dp-accounting 0.6.0, the same PLDs on a grid of 1e-4, gives 1.90786 (an upper bound)."""
    parts = (
        users(500),
        PureQuery(pure_epsilon=0.1),
        PureQuery(pure_epsilon=0.1),
        PureQuery(pure_epsilon=0.3),
    )
    found = Composition(parts=parts).epsilon(1e-6)
    assert 1.9076 < found.lower <= found.upper <= 1.90786
    assert found.width <= 1e-6 * found.upper
    turned = Composition(parts=parts[::-1]).epsilon(1e-6)
    assert turned.upper == pytest.approx(found.upper, rel=1e-6)


def test_pure_queries_alone_are_counted_outcome_by_outcome() -> None:
    budgets = (0.3, 0.7, 0.2)
    composed = Composition(parts=tuple(PureQuery(pure_epsilon=b) for b in budgets))
    for epsilon in (0.0, 0.25, 0.9, 1.1):
        plain = 0.0
        for signs in range(8):
            mine = theirs = 1.0
            for bit, budget in enumerate(budgets):
                likely = 1 / (1 + math.exp(-budget))
                up = signs >> bit & 1
                mine *= likely if up else 1 - likely
                theirs *= 1 - likely if up else likely
            plain += max(mine - math.exp(epsilon) * theirs, 0.0)
        found = composed.delta(epsilon)
        assert found.lower <= plain + 1e-14
        assert plain - 1e-14 <= found.upper
        assert found.width <= 1e-9


def test_leaving_a_query_out_is_caught() -> None:
    from_run = Composition(parts=(users(40, 0.05), PureQuery(pure_epsilon=0.5))).delta(1.0)
    assert users(40, 0.05).delta(1.0).upper < 0.8 * from_run.lower


def test_parts_of_different_adjacencies_are_refused() -> None:
    removed = users(10)
    replaced = gaussian_steps(shift=2.0, noise_multiplier=5.0, steps=1, adjacency=Adjacency.REPLACE)
    with pytest.raises(UseError, match="different adjacencies"):
        Composition(parts=(removed, replaced))
    with pytest.raises(UseError, match="at least one"):
        Composition(parts=())


def test_the_product_is_as_wide_as_what_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide bracket of the steps stays one: neither end is taken for the other."""
    monkeypatch.setattr(OneWay, "at", lambda self, epsilon: (0.1, 0.3))
    found = Composition(parts=(users(3), PureQuery(pure_epsilon=0.5))).delta(0.2)
    assert found.lower <= 0.1 < 0.3 <= found.upper
    assert (found.lower, found.upper) == pytest.approx((0.1, 0.3), rel=1e-6)
