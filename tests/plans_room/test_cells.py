"""Algorithm 3, problem (10) and ELS, held against hand traces and a brute force of their own."""

import itertools
import math

import pytest

from tests.plans_room.conftest import synthetic_norms
from userdp.accounting import Accountant, binomial_steps, epsilon_by
from userdp.errors import UseError
from userdp.plans.cells import NoiseTable, Problem, estimate_and_double, optimum


class FormulaTable(NoiseTable):
    """σ by a formula of q, so that a trace can be made by hand."""

    def __init__(self, sigma):
        super().__init__(target_epsilon=1.0, target_delta=1e-6)
        self._sigma = sigma

    def sigma(self, sampling_probability, steps, group_size=1):
        self.calibrations += 1
        return self._sigma(sampling_probability)


def problem(**changes) -> Problem:
    values = {
        "table": NoiseTable(target_epsilon=4.0, target_delta=1e-6),
        "norms": synthetic_norms(),
        "budget": 64.0,
        "steps": 50,
        "population": 1000,
    }
    return Problem(**{**values, **changes})


@pytest.mark.parametrize("seed", range(6))
def test_no_formula_for_sigma_hides_the_optimum(seed):
    """Any σ that rises with q, steps and plateaus included; norms that rise in between."""
    import random

    draw = random.Random(seed)
    jumps = sorted((draw.random() ** 3, draw.random()) for _ in range(6))

    def sigma(q):
        return 0.5 + draw_slope * q + sum(h for x, h in jumps if q >= x)

    draw_slope = draw.random() * 3
    norms = synthetic_norms(
        user_norms={1: 1.0, 3: draw.uniform(0.3, 1.2), 10: draw.uniform(0.2, 1), 50: 0.3}
    )
    p = problem(table=FormulaTable(sigma), norms=norms, budget=60, population=200)
    best = min(
        (norms.user_norm(g) * sigma(min(60 / g, 200) / 200) / min(60 / g, 200), g)
        for g in range(1, 51)
    )
    found, _ = optimum(p)
    assert found.noise_std == pytest.approx(best[0], rel=1.1e-5)


@pytest.mark.slow
def test_an_optimiser_for_which_sigma_is_one_number_is_caught():
    """The broken twin: σ taken at M = 1 for all M makes G = 1 look best where it is not."""
    p = problem(budget=256, population=500, steps=1000)
    honest, _ = optimum(p)
    one = p.sigma(1.0)
    blind, _ = optimum(problem(table=FormulaTable(lambda q: one), budget=256, population=500))
    assert blind.group_size == 1
    assert honest.group_size > 2
    assert p.of_users(blind.group_size).noise_std > 1.2 * honest.noise_std


def test_the_cohort_never_exceeds_the_population_and_compute_never_the_budget():
    p = problem(table=FormulaTable(lambda q: 0.5 + 9 * q), budget=640, population=100)
    _, computed = optimum(p)
    for cell in computed:
        assert cell.units <= 100
        assert cell.compute <= 640 * (1 + 1e-12)
        assert cell.sampling_probability <= 1
    assert computed[0].units == 100


def test_algorithm_3_by_hand():
    """L halves at every doubling of G; σ = √M, so that σ/M falls by √2: always double G first.

    B = 512 from (1, 32): τ_G = 1/2 < τ_M = 1/√2 three times, until G = 8 is the largest
    measured; then M doubles once. With L falling by 0.9 only, M doubles at every step.
    """
    halves = synthetic_norms(user_norms={1: 1.0, 2: 0.5, 4: 0.25, 8: 0.125})
    table = FormulaTable(lambda q: math.sqrt(q * 1000))
    way = estimate_and_double(problem(norms=halves, table=table, budget=512))
    assert [(c.group_size, c.units) for c in way] == [(1, 32), (2, 32), (4, 32), (8, 32), (8, 64)]
    slow = synthetic_norms(user_norms={1: 1.0, 2: 0.9, 4: 0.81})
    way = estimate_and_double(problem(norms=slow, table=table, budget=512))
    assert [(c.group_size, c.units) for c in way] == [(1, 32 * 2**k) for k in range(5)]


@pytest.mark.parametrize("budget", [1, 3, 31, 32, 33, 100, 640])
def test_algorithm_3_stays_within_any_budget(budget):
    p = problem(table=FormulaTable(lambda q: 0.5 + 9 * q), budget=budget, population=150)
    cell = estimate_and_double(p)[-1]
    assert cell.compute <= budget
    assert cell.units <= 150
    assert 2 * cell.compute > budget or cell.group_size == 64 or cell.units == 128
    assert optimum(p)[0].noise_std <= cell.noise_std * (1 + 1e-4)


@pytest.mark.parametrize("budget", [0.5, 0.0, -1.0, math.nan, math.inf])
def test_a_budget_below_one_gradient_is_refused(budget):
    with pytest.raises(UseError, match="budget"):
        problem(budget=budget)


def test_sigma_is_computed_once_within_budget_and_rises_with_the_cohort():
    p = problem()
    sigmas = [p.sigma(size) for size in (1, 4, 16, 64, 64)]
    assert p.table.calibrations == 4
    assert all(a < b for a, b in itertools.pairwise(sigmas[:4]))
    per_user = [s / m for s, m in zip(sigmas, (1, 4, 16, 64), strict=False)]
    assert all(a > b for a, b in itertools.pairwise(per_user))
    for size, sigma in zip((1, 64), (sigmas[0], sigmas[3]), strict=True):
        mechanism = binomial_steps(
            sampling_probability=size / 1000, noise_multiplier=sigma, steps=50
        )
        spent = epsilon_by(Accountant.RDP, mechanism, 1e-6).upper
        assert 4.0 <= spent < 6.5  # Rényi is above the exact answer, and not by much


def els_problem(**changes) -> Problem:
    values = {
        "table": NoiseTable(target_epsilon=2.0, target_delta=1e-5),
        "budget": 32.0,
        "steps": 20,
        "population": 200,
        "norms": synthetic_norms(example_norm=2.0),
    }
    return Problem(**{**values, **changes})


@pytest.mark.parametrize("group_size", [1, 3, 8])
def test_every_els_cell_is_within_the_budget_and_barely(group_size):
    cell = els_problem().of_examples(group_size)
    mechanism = binomial_steps(
        sampling_probability=32 / (200 * group_size),
        group_size=group_size,
        noise_multiplier=cell.noise_multiplier,
        steps=20,
    )
    assert mechanism.epsilon(1e-5).upper <= 2.0
    less = mechanism.with_noise_multiplier(cell.noise_multiplier * (1 - 1e-4))
    assert less.epsilon(1e-5).upper > 2.0
    assert cell.noise_std == pytest.approx(cell.noise_multiplier * 2.0 / 32)
    assert cell.compute == 32


def test_the_denominator_of_els_is_declared_and_at_most_users_times_the_cap():
    assert els_problem().of_examples(3).population == 600
    assert els_problem(population_examples=500).of_examples(3).population == 500
    assert els_problem(population_examples=500).of_examples(2).population == 400
    assert els_problem(budget=201.0).of_examples(1) is None
    assert els_problem(budget=201.0).of_examples(2) is not None
