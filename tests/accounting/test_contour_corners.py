"""Far corners of the accepted range: a true answer soon, and neither warnings nor overflow."""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import numpy as np
import pytest

from benchmarks.accounting import corners
from tests.accounting.oracles import one_step_delta
from tests.speed import fast_then_slow
from userdp.accounting.contour import Pair, delta_bracket, epsilon_bracket, pair_of
from userdp.accounting.contour.attempts import Target, attempts
from userdp.accounting.contour.curve import delta_at, epsilon_bounds
from userdp.accounting.contour.line import widened
from userdp.accounting.contour.nodes import Nodes
from userdp.accounting.laws import Binomial

pytestmark = pytest.mark.filterwarnings("error")

EPSILON = 4.6631


def rare(steps: int) -> Pair:
    """Rarely hit, many examples: delta is near 1e-56, far below the mass where a tilt ends."""
    return pair_of(
        Binomial(trials=1021, probability=1.90468e-06), noise_multiplier=1.90296, steps=steps
    )


def first_nodes(steps: int) -> Nodes:
    target = Target(EPSILON, None, 1e-144)
    return next(iter(attempts(rare(steps), target, remove=True)))


@cache
def one_step() -> float:
    return float(one_step_delta(1.90468e-06, 1021, 1.90296, EPSILON, remove=True))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2, 10, 467])
def test_more_steps_never_have_a_smaller_upper_bound_than_one_step_alone(steps: int) -> None:
    assert one_step() > 8.7e-57
    assert delta_bracket(rare(steps), EPSILON).upper >= one_step()


def test_broken_twin_a_chernoff_bound_without_the_mass_beyond_its_domain_is_below_the_truth() -> (
    None
):
    nodes = first_nodes(10)
    assert nodes.bounds.beyond > 0
    assert delta_at(nodes, EPSILON).upper >= one_step()
    forgetful = dataclasses.replace(nodes.bounds, beyond=0.0)
    assert delta_at(dataclasses.replace(nodes, bounds=forgetful), EPSILON).upper < 1e-100


@pytest.mark.parametrize("p", fast_then_slow([1e-6, 1e-4, 0.01, 0.5]))
@pytest.mark.pitfall(number=22)
def test_a_billion_steps_with_hardly_any_noise_end_in_a_bracket(p: float) -> None:
    pair = pair_of(Binomial(trials=1, probability=p), noise_multiplier=0.01, steps=10**9)
    found = epsilon_bracket(pair, 1e-6)
    one = epsilon_bracket(dataclasses.replace(pair, steps=1), 1e-6)
    assert one.lower <= found.upper < math.inf
    assert found.lower <= found.upper


@pytest.mark.parametrize("delta", [1e-307, 1e-290, 1e-250])
def test_a_delta_beyond_what_doubles_hold_still_has_a_finite_upper_bound(delta: float) -> None:
    for p in (1.0, 0.1):
        pair = pair_of(Binomial(trials=3, probability=p), noise_multiplier=2.0, steps=10**11)
        found = epsilon_bracket(pair, delta)
        assert 0 <= found.lower <= found.upper < math.inf


def test_corners_of_the_whole_range_break_nothing() -> None:
    asked = [corners.random_corner((3, index)) for index in range(4)]
    rows = [(corner, corners.ask(corner, 20.0)) for corner in asked]
    summary = corners.summarise(rows)
    assert summary["failures"] == 0, rows
    assert summary["wide_without_a_note"] == 0


def test_broken_twin_a_bracket_below_the_truth_is_found_by_what_is_known_from_elsewhere() -> None:
    corner = corners.Corner(1.90468e-06, 1021, 1.90296, 467, None, EPSILON)
    assert list(corners.contradictions(corner, 0.0, 1.7e-145))
    mild = corners.Corner(0.01, 1, 1.0, 2000, 1e-6, None)
    truth = epsilon_bounds(mild.mechanism().pair(), 1e-6, remove=True)
    assert not list(corners.contradictions(mild, truth.lower, truth.upper))
    assert list(corners.contradictions(mild, 0.9 * truth.lower, 0.9 * truth.upper))
    assert list(corners.contradictions(mild, 2 * truth.lower, 2 * truth.upper))


def test_an_allowance_that_no_double_holds_is_infinite_not_cut_off() -> None:
    found = widened(np.array([0.0, -5.0]), np.array([2000.0, 1e-9]))
    assert found[0] == math.inf
    assert found[1] == pytest.approx(math.exp(-5) * 1e-9, rel=1e-6)
