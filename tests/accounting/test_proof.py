"""The proof by ball arithmetic: golden values, the accountant beside it, and broken twins."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

flint = pytest.importorskip("flint", reason="the extra `proof` is not installed")

from tests.accounting import oracles  # noqa: E402
from tests.accounting.oracles import GOLDEN, mechanism_of  # noqa: E402
from tests.mechanisms import truncated  # noqa: E402
from tests.speed import fast_then_slow  # noqa: E402
from userdp.accounting import (  # noqa: E402
    Bracket,
    Exchanged,
    binomial_steps,
    gaussian_steps,
    hypergeometric_steps,
)
from userdp.accounting.check_by_proof import prove_delta, prove_epsilon, steps_of  # noqa: E402
from userdp.accounting.item_count_laws import Binomial, Hypergeometric  # noqa: E402
from userdp.accounting.proof import OneWay, Steps, enclose_delta, line_sum, moment, step_law  # noqa: E402
from userdp.accounting.proof.planning import Problem, make_plan  # noqa: E402
from userdp.core.errors import FailureError  # noqa: E402

# a second or less each: one step, a Gaussian, few and many steps
FAST = (1, 9, 32)

BRANCH, BRANCH_DELTA, _ = oracles.BRANCH


def steps(case, sigma_factor=1.0):
    return Steps(
        law=Binomial(trials=case["group_size"], probability=case["p"]),
        scale=1.0,
        noise_multiplier=case["sigma"] * sigma_factor,
        count=case["steps"],
    )


@pytest.fixture
def precise():
    """Balls of 160 bits in the test itself."""
    with flint.ctx.workprec(160):
        yield


def apart(one, other):
    return one.upper < other.lower or other.upper < one.lower


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=f"T={case['steps']} G={case['group_size']}",
            marks=[] if i in FAST else pytest.mark.slow,
        )
        for i, case in enumerate(GOLDEN)
    ],
)
def test_every_golden_delta_is_enclosed_anew_and_meets_the_accountants_bracket(case):
    found = enclose_delta(steps(case), case["epsilon"])
    contour = mechanism_of(case).delta(case["epsilon"])
    assert found.lower <= contour.upper
    assert contour.lower <= found.upper
    for way in ("remove", "add"):
        bounds: OneWay = getattr(found, way)
        if case[way]["delta"] is None:  # the oracle only knows that it is below 1e-150
            assert bounds.upper <= 1e-140
            continue
        truth = Fraction(Decimal(case[way]["delta"]))
        slack = Fraction(1, 10**14) * truth  # the oracle's own digits
        assert Fraction(bounds.lower) <= truth + slack
        assert truth - slack <= Fraction(bounds.upper)
        assert bounds.relative_width <= 1e-6


@pytest.mark.slow
def test_the_principal_branch_of_the_accountant_was_wrong_and_the_proof_says_so():
    wrong = Bracket(lower=169274.10, upper=169274.13, accountant="the principal branch")
    with pytest.raises(FailureError, match="contradicts the accountant"):
        prove_epsilon(BRANCH, BRANCH_DELTA, wrong)
    right = Bracket(lower=169834.88, upper=169834.89, accountant="the continuous branch")
    proof = prove_epsilon(BRANCH, BRANCH_DELTA, right)
    assert proof["proven"]
    assert proof["epsilon_lower_bound"]["proven"]


# ------------------------------------------------------------------ broken twins


def along_one_plan(one, epsilon, *, coarser=1.0):
    """*remove* from a single plan, whose period may be taken too short."""
    problem = Problem(one, epsilon, True, line_sum.LOG_TOLERANCE)
    plan = make_plan(problem, None)
    return line_sum._along(problem, replace(plan, period=plan.period / coarser), None)


@pytest.mark.slow
def test_a_principal_branch_in_the_proof_itself_is_caught(monkeypatch):
    one = steps_of(BRANCH)
    honest = along_one_plan(one, 169834.886)

    def principal(ratio, x, y):
        value, log_t = ratio.above(x, y)
        whole = value * (ratio.low * log_t).exp()
        return whole.log(), ratio.at(x)[2]

    monkeypatch.setattr(moment, "continuous_log", principal)
    assert apart(along_one_plan(one, 169834.886), honest)
    # and where two plans are tried, they contradict each other
    with pytest.raises(AssertionError, match="do not meet"):
        enclose_delta(one, 169834.886)


@pytest.mark.slow
def test_noise_that_is_off_by_a_billionth_is_caught():
    case = GOLDEN[21]
    honest = enclose_delta(steps(case), case["epsilon"])
    twin = enclose_delta(steps(case, 1 + 1e-9), case["epsilon"])
    assert apart(honest.remove, twin.remove)
    assert apart(honest.add, twin.add)


# ------------------------------------------------------------------ the lemmas, in numbers


@pytest.mark.parametrize(
    "some",
    [
        Binomial(trials=46, probability=0.97),
        Binomial(trials=12, probability=0.01),
        Hypergeometric(draws=20, population=60, marked=25),
    ],
)
def test_the_lemmas_on_z_hold_at_random_points(some, precise):
    rng = np.random.default_rng(5)
    one = Steps(law=some, scale=1.0, noise_multiplier=1.3, count=1)
    a, ratio = 1 / 1.3, step_law.Ratio(one, (0, some.most), (-9.0, 30.0))
    assert abs(sum(ratio.weights, flint.arb(0)) - 1) < 1e-30
    k = np.arange(some.most + 1)
    weight = np.array([float(w) for w in ratio.weights])
    for x in rng.uniform(-8, 25, 12):
        loss, mean, variance = ratio.at(float(x))
        y = rng.uniform(0.0, 0.55 * math.pi / a)
        heights = np.linspace(0.0, y, 400)
        terms = weight * np.exp(k * a * x - (k * a) ** 2 / 2 - float(loss))
        z = (terms * np.exp(1j * k * a * heights[:, None])).sum(axis=1)
        turned = np.unwrap(np.angle(z))[-1]  # the continuous branch, by walking up
        w = float(variance)
        bound = w * (4 * math.tan(a * y / 2) - 2 * a * y)
        assert abs(turned - a * y * float(mean)) <= bound + 1e-7
        assert math.cos(a * y / 2) ** (4 * w) <= abs(z[-1]) * (1 + 1e-7)
        assert abs(z[-1]) <= 1 + 1e-7
        if bound < 3.0:
            found, _ = step_law.continuous_log(ratio, float(x), flint.arb(y))
            assert abs(float(found.imag) - turned) < 1e-6


# ------------------------------------------------------------------ mechanisms and claims


@pytest.mark.parametrize(
    "mechanism",
    fast_then_slow(
        [
            gaussian_steps(shift=2.0, noise_multiplier=30.0, steps=100),
            binomial_steps(sampling_probability=0.3, group_size=5, noise_multiplier=3.0, steps=1),
            binomial_steps(sampling_probability=0.02, noise_multiplier=0.8, steps=500),
            hypergeometric_steps(batch_size=10, population=300, noise_multiplier=1.5, steps=300),
            hypergeometric_steps(
                batch_size=20, population=500, group_size=6, noise_multiplier=3.0, steps=400
            ),
            truncated(
                binomial_steps(sampling_probability=0.02, noise_multiplier=0.8, steps=500),
                cap=60,
                most_units=1000,
            ),
        ],
        fast=2,
    ),
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_each_kind_of_mechanism_is_proven_at_its_epsilon(mechanism):
    delta = 1e-6
    found = mechanism.epsilon(delta)
    proof = prove_epsilon(mechanism, delta, found)
    assert proof["proven"], proof
    assert proof["delta_upper"] <= delta < 1.001 * proof["delta_upper"]
    again = prove_delta(mechanism, found.upper, mechanism.delta(found.upper))
    assert again["delta_upper"] >= again["delta_lower"]


def test_an_epsilon_that_is_too_small_contradicts_the_accountant():
    mechanism = gaussian_steps(shift=2.0, noise_multiplier=30.0, steps=100)
    found = mechanism.epsilon(1e-6)
    with pytest.raises(FailureError, match="contradicts the accountant"):
        prove_epsilon(mechanism, 1e-6, replace(found, lower=0.0, upper=0.99 * found.upper))


def test_what_has_no_proof_is_called_not_proven_and_says_why():
    exchanged = Exchanged(
        mixture=binomial_steps(sampling_probability=0.1, noise_multiplier=2.0, steps=3)
    )
    proof = prove_epsilon(exchanged, 1e-6, exchanged.epsilon(1e-6))
    assert not proof["proven"]
    assert "Exchanged" in proof["why"]
