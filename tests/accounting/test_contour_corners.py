"""Far corners of the accepted range: a true answer soon, and neither warnings nor overflow."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from benchmarks.accounting import corners
from tests.speed import fast_then_slow
from userdp.accounting.contour import Phase, compose, delta_bracket, epsilon_bracket, phase_of
from userdp.accounting.contour.attempts import Target, attempts
from userdp.accounting.contour.compose import delta_at
from userdp.accounting.contour.large import large_nodes, small_nodes
from userdp.accounting.contour.losses import Law, _relevant
from userdp.accounting.contour.rounding import rounding, widened
from userdp.accounting.contour.side import make_side
from userdp.accounting.contour.split import choices
from userdp.accounting.contour.trapezoid import Nodes
from userdp.accounting.laws import Binomial

pytestmark = pytest.mark.filterwarnings("error")

EPSILON = 4.6631


def rare(steps: int) -> Phase:
    """Rarely hit, many examples: delta is near 1e-56, far below the mass where a tilt ends."""
    return phase_of(
        Binomial(trials=1021, probability=1.90468e-06), noise_multiplier=1.90296, count=steps
    )


def first_nodes(steps: int) -> Nodes:
    target = Target(EPSILON, None, 1e-144)
    return next(iter(attempts((rare(steps),), target, remove=True)))


def one_step() -> float:
    return delta_bracket([rare(1)], EPSILON).lower


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, 10, 467])
def test_more_steps_never_have_a_smaller_upper_bound_than_one_step_alone(steps: int) -> None:
    assert one_step() > 8.7e-57
    assert delta_bracket([rare(steps)], EPSILON).upper >= one_step()


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
    phase = phase_of(Binomial(trials=1, probability=p), noise_multiplier=0.01, count=10**9)
    found = epsilon_bracket([phase], 1e-6)
    one = epsilon_bracket([dataclasses.replace(phase, count=1)], 1e-6)
    assert one.lower <= found.upper < math.inf
    assert found.lower <= found.upper


@pytest.mark.parametrize("delta", [1e-307, 1e-290, 1e-250])
def test_a_delta_beyond_what_doubles_hold_still_has_a_finite_upper_bound(delta: float) -> None:
    for p in (1.0, 0.1):
        phase = phase_of(Binomial(trials=3, probability=p), noise_multiplier=2.0, count=10**11)
        found = epsilon_bracket([phase], delta)
        assert 0 <= found.lower <= found.upper < math.inf


@pytest.mark.slow
def test_the_slow_setting_needs_few_nodes_because_its_transform_decays() -> None:
    phase = phase_of(Binomial(trials=1, probability=1.6e-5), noise_multiplier=3.2, count=811)
    log_delta = math.log(1.6e-57)
    side = make_side((phase,), remove=True, mass_budget=1e-65)
    choice = next(iter(choices(side, 0.002037, log_delta)))
    rest = choice.rest or small_nodes(choice, 0.002037, log_delta)
    assert rest is not None
    nodes = large_nodes(choice, 0.002037, log_delta, rest)
    assert nodes is not None
    assert nodes.value.size < 1000  # two million where only |M_1| bounded the tail
    found = epsilon_bracket([phase], 1.6e-57)
    assert 0.00133 < found.lower < found.upper < 0.00353


def test_an_allowance_that_no_double_holds_is_infinite_not_cut_off() -> None:
    found = widened(np.array([0.0, -5.0]), np.array([2000.0, 1e-9]))
    assert found[0] == math.inf
    assert found[1] == pytest.approx(math.exp(-5) * 1e-9, rel=1e-6)


def test_no_relevant_component_is_left_out_between_the_ends() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        a = np.sort(rng.uniform(0, 30, 40))
        w = rng.uniform(-60, 0, 40)
        law = Law(a, w - np.logaddexp.reduce(w), 0.0)
        x = np.sort(rng.uniform(-20, 60, 256))
        e = law.w[None, :] + law.a[None, :] * (x[:, None] - 0.5 * law.a[None, :])
        needed = np.flatnonzero((e > e.max(axis=1)[:, None] - 46.0).any(axis=0))
        kept = _relevant(law, x)
        assert kept.start <= needed[0]
        assert kept.stop > needed[-1]


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
    truth = compose.epsilon_bounds(mild.mechanism().phases(), 1e-6, remove=True)
    assert not list(corners.contradictions(mild, truth.lower, truth.upper))
    assert list(corners.contradictions(mild, 0.9 * truth.lower, 0.9 * truth.upper))
    assert list(corners.contradictions(mild, 2 * truth.lower, 2 * truth.upper))


@pytest.mark.parametrize(("u", "reach"), [(0.05, 0.05 * 24), (7.0, 2.0 * 4)])
def test_the_allowance_for_rounding_is_the_one_that_the_docs_state(u: float, reach: float) -> None:
    """32 ulps of sum |w| min(2, u |l|), and 8 ulps of (1 + c + u) |l|; an ulp is 2^-53."""
    weights, loss = np.array([1.0, -3.0j]), np.array([3.0, 7.0j])
    (found,) = rounding(weights, loss, 2.0, np.array([u]))
    assert found == pytest.approx(2.0**-53 * (32 * reach + 8 * (3 + u) * 24), rel=1e-12, abs=0)
