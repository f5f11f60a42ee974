"""The oracle against itself, by another method, and the golden file against the oracle."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from tests.accounting import oracle
from tests.speed import fast_then_slow

FILE = Path(__file__).with_name("golden_deltas.json")
CASES: list[dict[str, Any]] = json.loads(FILE.read_text())["cases"]
CHEAP_SECONDS, QUICK_SECONDS = 1.45, 0.1  # of the two directions, where the file was made


def _name(case: dict[str, Any]) -> str:
    return "T={steps} p={p} sigma={sigma} G={group_size} eps={epsilon}".format(**case)


def _arguments(case: dict[str, Any]) -> dict[str, Any]:
    return {k: case[k] for k in ("steps", "p", "sigma", "group_size")}


CHEAP = sorted((c for c in CASES if c["seconds"] <= CHEAP_SECONDS), key=lambda c: c["seconds"])
QUICK = sum(c["seconds"] <= QUICK_SECONDS for c in CHEAP)


@pytest.mark.parametrize("case", fast_then_slow(CHEAP, fast=QUICK), ids=_name)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_golden_deltas_come_out_again(case: dict[str, Any], direction: oracle.Direction) -> None:
    if case[direction]["delta"] is None:
        pytest.skip("below 1e-150")
    again = oracle.delta(direction, case["epsilon"], **_arguments(case)).value
    golden = mpmath.mpf(case[direction]["delta"])
    assert abs(again - golden) <= 1e-14 * golden


def test_golden_deltas_have_fifteen_digits_and_reach_from_1e_3_to_1e_100() -> None:
    assert len(CASES) >= 36
    answers = [c[d] for c in CASES for d in ("remove", "add") if c[d]["delta"] is not None]
    assert max(a["agreement"] for a in answers) < 1e-14
    exponents = [mpmath.log10(mpmath.mpf(a["delta"])) for a in answers if a["delta"] != "0.0"]
    assert min(exponents) < -99
    assert max(exponents) > -3.1


def test_the_case_where_dp_accounting_errs_is_above_its_delta() -> None:
    case = CASES[0]
    assert case["epsilon"] == 444.3452988
    assert float(case["remove"]["delta"]) == pytest.approx(1.2600107e-9, rel=1e-8)
    assert float(case["remove"]["delta"]) > 1.26e-9


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_inversion_and_nesting_agree_at_two_steps(direction: oracle.Direction) -> None:
    p, sigma, group_size = 0.5, 2.0, 1
    nested = oracle.delta(direction, 1.0, steps=2, p=p, sigma=sigma, group_size=group_size)
    assert nested.method == "nested"
    with mpmath.mp.workdps(oracle.DIGITS):
        inverted = oracle._invert(
            direction, 1.0, 2, p, sigma, group_size, float(nested.value) / 10, 0
        )
    assert abs(inverted / nested.value - 1) < 1e-18


def test_one_step_agrees_with_a_plain_sum_over_x() -> None:
    p, sigma, group_size, epsilon = 0.3, 1.5, 3, 0.7
    x = np.linspace(-25, 30, 2_000_001)
    weights = [math.comb(group_size, k) * p**k * (1 - p) ** (group_size - k) for k in range(4)]

    def normal(centre: float) -> np.ndarray:
        return np.exp(-((x - centre) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))

    q = sum(w * normal(k) for k, w in enumerate(weights))
    for direction, (first, second) in {"remove": (q, normal(0)), "add": (normal(0), q)}.items():
        plain = np.maximum(first - math.exp(epsilon) * second, 0).sum() * (x[1] - x[0])
        found = oracle.delta(direction, epsilon, steps=1, p=p, sigma=sigma, group_size=group_size)
        assert float(found.value) == pytest.approx(plain, rel=1e-8)


def test_full_participation_does_not_depend_on_how_it_is_split() -> None:
    whole = oracle.delta("remove", 2.0, steps=9, p=1.0, sigma=6.0, group_size=2).value
    once = oracle.delta("add", 2.0, steps=1, p=1.0, sigma=1.0, group_size=1).value
    assert abs(whole / once - 1) < 1e-30


@pytest.mark.slow
def test_dp_accounting_brackets_the_oracle() -> None:
    """An upper and a lower PLD with connected dots, each within its FFT round-off of 1e-13."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    steps, p, sigma, group_size, epsilon = 6, 0.3, 3.0, 2, 1.5
    found = max(
        oracle.delta(d, epsilon, steps=steps, p=p, sigma=sigma, group_size=group_size).value
        for d in ("remove", "add")
    )
    weights = [math.comb(2, k) * p**k * (1 - p) ** (2 - k) for k in range(3)]
    bounds = [
        pld.from_mixture_gaussian_mechanism(
            sigma,
            list(range(3)),
            weights,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=5e-3,
        )
        .self_compose(steps)
        .get_delta_for_epsilon(epsilon)
        for pessimistic in (False, True)
    ]
    assert bounds[0] - 1e-13 <= found <= bounds[1] + 1e-13
    assert bounds[1] / bounds[0] < 1.2
