"""Compositions against dp-accounting and themselves."""

from __future__ import annotations

import pytest

from userdp.accounting.mechanisms import (
    Composition,
    Mixture,
    binomial_steps,
    gaussian_steps,
)
from userdp.errors import UseError
from userdp.vocabulary import Adjacency

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def users(steps: int, q: float = 0.01, sigma: float = 1.0) -> Mixture:
    return binomial_steps(sampling_probability=q, noise_multiplier=sigma, steps=steps)


GRID = 2e-3  # of dp-accounting's losses


def mixture(pessimistic: bool, sigma: float, weights: list[float], steps: int):  # type: ignore[no-untyped-def]
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_mixture_gaussian_mechanism(
        sigma,
        [float(k) for k in range(len(weights))],
        weights,
        pessimistic_estimate=pessimistic,
        value_discretization_interval=GRID,
    ).self_compose(steps)


def test_two_halves_are_the_whole() -> None:
    whole, half = users(600).epsilon(1e-6), users(300)
    found = Composition(parts=(half, half)).epsilon(1e-6)
    assert found.lower <= whole.upper
    assert whole.lower <= found.upper
    assert found.width <= 1e-6 * found.upper


@pytest.mark.slow
def test_phases_of_different_sampling_and_noise_agree_with_dp_accounting() -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    parts = (
        binomial_steps(sampling_probability=0.1, group_size=2, noise_multiplier=1.5, steps=20),
        users(30, 0.02, 0.9),
        gaussian_steps(noise_multiplier=10.0, steps=1),
    )
    bounds = [
        mixture(pessimistic, 1.5, [0.81, 0.18, 0.01], 20)
        .compose(mixture(pessimistic, 0.9, [0.98, 0.02], 30))
        .compose(
            pld.from_gaussian_mechanism(
                10.0, pessimistic_estimate=pessimistic, value_discretization_interval=GRID
            )
        )
        for pessimistic in (False, True)
    ]
    for epsilon in (0.3, 1.0, 2.0):
        low, high = (bound.get_delta_for_epsilon(epsilon) for bound in bounds)
        found = Composition(parts=parts).delta(epsilon)
        assert low - 1e-13 <= found.lower <= found.upper <= high + 1e-13
        assert high <= 1.3 * low
        assert found.width <= 1e-6 * found.upper


def test_parts_of_different_adjacencies_are_refused() -> None:
    removed = users(10)
    replaced = gaussian_steps(shift=2.0, noise_multiplier=5.0, steps=1, adjacency=Adjacency.REPLACE)
    with pytest.raises(UseError, match="different adjacencies"):
        Composition(parts=(removed, replaced))
    with pytest.raises(UseError, match="at least one"):
        Composition(parts=())
