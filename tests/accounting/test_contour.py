"""The contour accountant: its brackets hold, against oracles that share no code with it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import binom

from tests.accounting.oracles import one_way
from userdp.accounting.contour import Pair, epsilon_bracket, pair_of
from userdp.accounting.laws import Binomial

pytestmark = pytest.mark.filterwarnings("error")


def examples(count: int, p: float, sigma: float, group_size: int = 1) -> Pair:
    return pair_of(Binomial(trials=group_size, probability=p), noise_multiplier=sigma, steps=count)


def oracle_two_steps(
    p: float, sigma: float, group_size: int, epsilon: float
) -> tuple[float, float]:
    """(delta, its uncertainty) of two steps (remove), without any transform.

    E over x_1 ~ Q of delta_1(eps - l(x_1)), delta_1 by its closed form for any real argument.
    """
    k = np.arange(group_size + 1)
    a = k / sigma
    pmf = binom.pmf(k, group_size, p)

    def loss(x: np.ndarray) -> np.ndarray:
        return np.log1p((pmf * np.expm1(np.outer(x, a) - a * a / 2)).sum(axis=1))

    def one(left: np.ndarray) -> np.ndarray:
        low, high = np.full(left.size, -200.0), np.full(left.size, 60.0)
        for _ in range(60):
            mid = 0.5 * (low + high)
            below = loss(mid) < left
            low, high = np.where(below, mid, low), np.where(below, high, mid)
        q = (pmf * ndtr(a - low[:, None])).sum(axis=1)
        inner = q - np.exp(left) * ndtr(-low)
        return np.where(left <= math.log(pmf[0]), -np.expm1(left), inner)

    def total(h: float) -> float:
        x = np.arange(-9.5, 16.0, h)
        density = np.exp(loss(x) - x * x / 2) / math.sqrt(2 * math.pi)
        return float((density * one(epsilon - loss(x))).sum() * h)

    fine, coarse = total(1 / 640), total(1 / 320)
    return fine, 2 * abs(fine - coarse) + 1e-10 * fine


TABLE = [
    (2000, 0.01, 1.0, 1, 1e-6, 2.9552459),
    (2000, 0.01, 1.0, 8, 1e-6, 34.8906956),
    (2000, 0.01, 1.0, 16, 1e-6, 90.9012057),
    (2000, 0.01, 0.5, 8, 1e-6, 208.3262930),
    (2000, 0.01, 2.0, 32, 1e-6, 66.8337342),
    (10000, 1e-4, 1.0, 128, 1e-6, 9.3492028),
    (301, 0.177504, 1.1994, 8, 1.26e-9, 444.3453503),
]


@pytest.mark.parametrize(("count", "p", "sigma", "group", "delta", "epsilon"), TABLE)
def test_epsilon_agrees_with_the_recorded_values_and_is_narrow(
    count: int, p: float, sigma: float, group: int, delta: float, epsilon: float
) -> None:
    found = epsilon_bracket(examples(count, p, sigma, group), delta)
    assert found.lower <= epsilon + 5.1e-8
    assert found.upper >= epsilon - 5.1e-8
    assert found.width <= 1e-6 * max(found.upper, 1e-3)
    assert found.note == ""
    assert found.accountant == "contour"


@pytest.mark.parametrize(
    ("p", "sigma", "group", "epsilon"),
    [(1e-3, 0.5, 1, 3.0), (2.4e-5, 1.07, 3, 0.002), (0.05, 1.0, 2, 2.0), (1e-4, 5.0, 4, 0.001)],
)
def test_few_large_steps_agree_with_a_transform_free_oracle(
    p: float, sigma: float, group: int, epsilon: float
) -> None:
    truth, unsure = oracle_two_steps(p, sigma, group, epsilon)
    assert unsure <= 1e-5 * truth
    found = one_way(examples(2, p, sigma, group), epsilon, remove=True)
    assert found.lower <= truth + unsure
    assert found.upper >= truth - unsure
    assert found.width <= 1e-6 * found.upper


def test_epsilon_is_exactly_zero_where_delta_at_zero_is_within_budget() -> None:
    found = epsilon_bracket(examples(10, 1e-6, 50.0), 1e-3)
    assert (found.lower, found.upper) == (0.0, 0.0)


def test_add_direction_is_exactly_zero_beyond_its_largest_loss() -> None:
    found = one_way(examples(10, 0.01, 1.0, 2), 0.21, remove=False)
    assert (found.lower, found.upper) == (0.0, 0.0)


@pytest.mark.slow
@settings(
    max_examples=8,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    st.integers(1, 20_000),
    st.floats(1e-5, 0.5),
    st.floats(0.35, 30.0),
    st.integers(1, 64),
    st.floats(1e-11, 1e-3),
)
def test_epsilon_is_monotone(count: int, p: float, sigma: float, group: int, delta: float) -> None:
    here = epsilon_bracket(examples(count, p, sigma, group), delta)
    assert math.isfinite(here.upper)
    assert epsilon_bracket(examples(2 * count, p, sigma, group), delta).upper >= here.lower
    assert epsilon_bracket(examples(count, 1.2 * p, sigma, group), delta).upper >= here.lower
    assert epsilon_bracket(examples(count, p, 1.2 * sigma, group), delta).lower <= here.upper
    assert epsilon_bracket(examples(count, p, sigma, group + 1), delta).upper >= here.lower
