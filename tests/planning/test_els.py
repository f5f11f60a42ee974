"""ELS: σ of every group size, public denominators, and the median rule."""

import math

import pytest

from tests.planning.conftest import synthetic_norms
from tests.speed import fast_then_slow
from userdp.accounting import binomial_steps
from userdp.errors import UseError
from userdp.planning.choice import choose
from userdp.planning.els import els_cell, examples_after_cap, median_group_size, sweep
from userdp.planning.noise import NoiseTable
from userdp.planning.uls import Problem


def problem(**changes) -> Problem:
    values = {
        "table": NoiseTable(target_epsilon=2.0, target_delta=1e-5),
        "budget": 32.0,
        "steps": 20,
        "population": 200,
        "population_examples": None,
        "norms": synthetic_norms(example_norm=2.0),
    }
    return Problem(**{**values, **changes})


def test_every_cell_of_the_sweep_is_within_the_budget_and_barely():
    cells = sweep(problem(), [8, 1, 3])
    assert [cell.group_size for cell in cells] == [1, 3, 8]
    for cell in cells:
        mechanism = binomial_steps(
            sampling_probability=32 / (200 * cell.group_size),
            group_size=cell.group_size,
            noise_multiplier=cell.noise_multiplier,
            steps=20,
        )
        assert mechanism.epsilon(1e-5).upper <= 2.0
        less = mechanism.with_noise_multiplier(cell.noise_multiplier * (1 - 1e-4))
        assert less.epsilon(1e-5).upper > 2.0
        assert cell.noise_std == pytest.approx(cell.noise_multiplier * 2.0 / 32)
        assert cell.compute == 32


def test_group_size_one_costs_what_user_sampling_costs():
    """ELS with G = 1 is ULS with G = 1 (Theorem 2)."""
    cell = els_cell(problem(), 1)
    mechanism = binomial_steps(
        sampling_probability=32 / 200, noise_multiplier=cell.noise_multiplier, steps=20
    )
    assert mechanism.epsilon(1e-5).upper == pytest.approx(2.0, rel=1e-3)


def test_the_denominator_is_declared_and_never_more_than_users_times_the_cap():
    assert examples_after_cap(problem(), 3) == 600
    assert examples_after_cap(problem(population_examples=500), 3) == 500
    assert examples_after_cap(problem(population_examples=500), 2) == 400


def test_a_batch_of_more_than_all_examples_is_no_cell():
    assert els_cell(problem(budget=201.0), 1) is None
    assert [cell.group_size for cell in sweep(problem(budget=201.0), [1, 2])] == [2]


@pytest.mark.parametrize("median", [0, -1, 10**7])
def test_a_median_that_is_no_group_size_is_refused(median):
    with pytest.raises(UseError, match="median"):
        median_group_size(median)


@pytest.mark.parametrize("seed", fast_then_slow(range(8), fast=2))
def test_the_choice_is_that_of_the_variances(seed):
    """Oracle: Equations 5 and 6, with the variances computed here."""
    import random

    draw = random.Random(seed)
    norms = synthetic_norms(shared=draw.random(), own=draw.random() * 3)
    table = NoiseTable(target_epsilon=draw.uniform(0.5, 8), target_delta=1e-5)
    els = els_cell(problem(table=table, norms=norms), 2)
    uls = Problem(table=table, norms=norms, budget=32.0, steps=20, population=200).cell(
        draw.choice([1, 4, 32])
    )
    var_els = (els.noise_multiplier * norms.example_norm / 32) ** 2
    length = norms.user_norms[uls.group_size]
    var_uls = (uls.noise_multiplier * length / uls.cohort_size) ** 2
    found = choose(uls, els, example_norm=norms.example_norm, why_no_els="")
    assert (found.cell is els) == (var_els < var_uls)
    assert found.ratio == pytest.approx(math.sqrt(var_els / var_uls))
    equation_7 = norms.example_norm * els.noise_multiplier <= (
        uls.group_size * length * uls.noise_multiplier
    )
    assert equation_7 == (var_els <= var_uls)
    for cell in (els, uls):
        assert f"{cell.noise_std:.4g}" in found.reason
        assert f"{cell.noise_multiplier:.4g}" in found.reason
