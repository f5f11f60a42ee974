"""The contour accountant in its far corners and on its branch; each broken step is caught.

Its brackets are held against oracles that share no code with it here, and in `test_mechanisms`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import mpmath as mp
import numpy as np
import pytest

from benchmarks.accounting import corners, lines
from tests.accounting import oracles
from tests.accounting.oracles import BRANCH, one_step_delta, one_way
from tests.speed import fast_then_slow
from userdp.accounting.contour import epsilon_bracket, moment_function, pair_of, privacy_loss
from userdp.accounting.contour.closed_form import Bounds, gaussian_delta
from userdp.accounting.contour.coarse_grid import make_side, saddle_at_epsilon, split_at
from userdp.accounting.contour.curve import delta_at, delta_bounds, epsilon_bounds
from userdp.accounting.contour.methods import Target, attempts, plan_nodes
from userdp.accounting.item_count_laws import Binomial
from userdp.core.errors import FailureError

pytestmark = pytest.mark.filterwarnings("error")


def binomial(steps, p, sigma, group=1):
    return pair_of(Binomial(trials=group, probability=p), noise_multiplier=sigma, steps=steps)


def test_what_is_exactly_zero_is_told_as_zero():
    """δ at ε = 0 is within the budget; or no loss of *add* is so large."""
    within = epsilon_bracket(binomial(10, 1e-6, 50.0), 1e-3)
    beyond = one_way(binomial(10, 0.01, 1.0, 2), 0.21, remove=False)
    assert {within.lower, within.upper, beyond.lower, beyond.upper} == {0.0}


@pytest.mark.parametrize("mu", [1e-6, 1e-2, 1.0, 7.0])
def test_delta_of_a_gaussian_is_enclosed_far_into_its_tail(mu):
    for spreads in (-3.0, 0.0, 1.0, 6.0, 12.0, 25.0):
        if (epsilon := mu * (spreads + 0.5 * mu)) >= 0:
            truth, found = oracles.gaussian_delta(mu, epsilon), gaussian_delta(mu, epsilon)
            with mp.workdps(60):
                assert found.lower <= truth <= found.upper
                assert found.upper - found.lower <= 1e-9 * truth


@pytest.mark.parametrize("seed", fast_then_slow([7, 8, 9, 10]))
@pytest.mark.parametrize("remove", fast_then_slow([False, True]), ids=["add", "remove"])
def test_delta_of_one_rare_step_is_enclosed_far_into_its_tail(remove, seed):
    rng = np.random.default_rng(seed)
    for _ in range(12):
        p, sigma = 10 ** rng.uniform(-12, -0.5), 10 ** rng.uniform(-1.3, 0.5)
        epsilon = 10 ** rng.uniform(-6, 1.0)
        found = one_way(binomial(1, p, sigma), epsilon, remove=remove)
        truth = one_step_delta(p, 1, sigma, epsilon, remove=remove)
        assert found.lower <= truth <= found.upper, (p, sigma, epsilon)


# ------------------------------------------------- far corners of the accepted range

RARE = (1.90468e-06, 1.90296, 1021)  # hardly drawn, many examples: δ is near 1e-56
EPSILON = 4.6631


@cache
def one_step():
    p, sigma, group = RARE
    return float(one_step_delta(p, group, sigma, EPSILON, remove=True))


def test_broken_twin_a_chernoff_bound_without_the_mass_beyond_its_domain_is_below_the_truth():
    nodes = next(iter(attempts(binomial(10, *RARE), Target(EPSILON, None, 1e-144), remove=True)))
    assert nodes.bounds.beyond > 0
    assert delta_at(nodes, EPSILON).upper >= one_step()
    forgetful = replace(nodes, bounds=replace(nodes.bounds, beyond=0.0))
    assert delta_at(forgetful, EPSILON).upper < 1e-100


FAR = [  # p, group, sigma, steps, delta, epsilon
    (1e-6, 1, 0.01, 10**9, 1e-6, None),  # hardly any noise
    (0.1, 3, 2.0, 10**11, 1e-307, None),  # a δ beyond what doubles hold
    (1e-9, 1, 1e6, 1, None, 1e-300),
    (0.9, 512, 1e-3, 1000, None, 1e300),
    *((*RARE[:1], RARE[2], RARE[1], steps, None, EPSILON) for steps in (1, 2, 10, 467)),
    *((p, 1, 0.01, 10**9, 1e-6, None) for p in (1e-4, 0.01, 0.5)),
    *((p, 3, 2.0, 10**11, delta, None) for p, delta in ((1.0, 1e-290), (0.1, 1e-250))),
    *((0.9, 512, sigma, 1000, None, e) for sigma in (1e6, 1.0) for e in (0.0, 1e-9, 1e3, 1e300)),
]
CORNERS = [
    *fast_then_slow([corners.Corner(*setting) for setting in FAR], fast=4),
    *fast_then_slow([corners.random_corner((3, index)) for index in range(16)], fast=4),
]


@pytest.mark.parametrize("corner", CORNERS, ids=str)
@pytest.mark.pitfall(number=22)
def test_a_corner_ends_in_a_bracket_that_nothing_known_from_elsewhere_excludes(corner):
    """No error, no warning, no infinite end; one step alone, Rényi's bound, and the inverse."""
    found = corners.ask(corner, 20.0)
    assert found["failures"] == []
    assert corner.epsilon is None or found["upper"] <= 1


def test_broken_twin_a_bracket_below_the_truth_is_found_by_what_is_known_from_elsewhere():
    corner = corners.Corner(1.90468e-06, 1021, 1.90296, 467, None, EPSILON)
    assert list(corners.contradictions(corner, 0.0, 1.7e-145))
    mild = corners.Corner(0.01, 1, 1.0, 2000, 1e-6, None)
    truth = epsilon_bounds(mild.mechanism().pair(), 1e-6, remove=True)
    assert not list(corners.contradictions(mild, truth.lower, truth.upper))
    assert list(corners.contradictions(mild, 0.9 * truth.lower, 0.9 * truth.upper))
    assert list(corners.contradictions(mild, 2 * truth.lower, 2 * truth.upper))


# ------------------------------------------------- the branch of the loss's logarithm

# The broken twin everywhere is the principal logarithm near e^l = 1, which was once used here.
MECHANISM, DELTA, TRUTH = BRANCH


def use_the_principal_logarithm(patch):
    right = privacy_loss.on_branch

    def broken(value, y, slope):
        ell = right(value, y, slope)
        return lines.principal_near_one(ell, ell[0].real) if y.size else ell

    patch.setattr(privacy_loss, "on_branch", broken)


def test_a_loss_that_turns_round_while_it_is_small_keeps_its_branch():
    found = MECHANISM.epsilon(DELTA)
    assert found.lower <= TRUTH + 1e-6
    assert found.upper >= TRUTH - 1e-6
    assert found.width <= 1e-6 * found.upper
    assert found.note == ""


@pytest.mark.parametrize(
    "dropped",
    [("is_on_branch",), ("sums_agree",), ("is_on_branch", "sums_agree")],
    ids=["one check", "the other", "both"],
)
@pytest.mark.pitfall(number=33)
def test_the_principal_logarithm_misses_the_truth_only_without_both_checks(monkeypatch, dropped):
    use_the_principal_logarithm(monkeypatch)
    for name in dropped:
        monkeypatch.setattr(moment_function, name, lambda *_: True)
    found = MECHANISM.epsilon(DELTA)
    if len(dropped) == 2:
        assert found.upper < TRUTH - 500  # a "certified" epsilon that is too small
    else:
        assert found.lower <= TRUTH <= found.upper


def test_brackets_that_exclude_each_other_are_refused_not_joined():
    assert Bounds(1.0, 2.0).meet(Bounds(1.5, 3.0)) == Bounds(1.5, 2.0)
    with pytest.raises(FailureError, match="exclude each other"):
        Bounds(1.0, 2.0).meet(Bounds(2.1, 3.0))


def rises(law, x, height):
    """Whether Im l(x + iy) >= 0 up to ``height``, on a fine grid and by the continuous branch."""
    y = np.linspace(0.0, height, 4001)
    terms = np.exp(law.w[:, None] + law.a[:, None] * (x + 1j * y - 0.5 * law.a[:, None]))
    return bool((np.unwrap(np.angle(terms.sum(axis=0))) >= -1e-9).all())


def test_where_the_loss_is_said_to_turn_upwards_it_does():
    rng = np.random.default_rng(11)
    said = refused = 0
    for _ in range(400):
        size = int(rng.integers(2, 7))
        a = np.concatenate([[0.0], np.sort(rng.uniform(0.05, 6.0, size - 1))])
        p = rng.dirichlet(np.full(size, 0.4)) + 1e-9
        law = privacy_loss.ShiftLaw(a, np.log(p / p.sum()), 0.0)
        x, height = rng.uniform(-4.0, 6.0), 10 ** rng.uniform(-1.0, 0.6)
        if privacy_loss.turns_upwards(law, x, height):
            said += 1
            assert rises(law, x, height)
        else:
            refused += not rises(law, x, height)
    assert min(said, refused) > 25, "both answers are needed for this to say anything"


def test_a_loss_that_turns_back_below_the_axis_is_not_said_to_turn_upwards():
    """One term nearly back at half a turn, and one beyond it, beside a large one that stays."""
    chances, a = np.array([0.9, 0.05, 0.05]), np.array([0.0, 1.0, 1.5])
    law = privacy_loss.ShiftLaw(a, np.log(chances) + 0.5 * a**2, 0.0)
    assert not rises(law, 0.0, 0.99 * np.pi)
    assert not privacy_loss.turns_upwards(law, 0.0, 0.99 * np.pi)


# ------------------------------------------------- broken certificates

PAIR = binomial(2000, 0.01, 1.0, 8)
LARGE = 34.0  # ε


def planned(mass_budget):
    side = make_side(PAIR, remove=True, mass_budget=mass_budget)
    saddle = saddle_at_epsilon(side, LARGE)
    assert saddle is not None
    nodes = plan_nodes(side, saddle)
    assert nodes is not None
    return nodes


@pytest.mark.pitfall(number=24)
def test_a_dropped_tail_that_is_not_added_back_is_caught():
    truth = delta_bounds(PAIR, LARGE, remove=True)
    nodes = planned(3e-3 * truth.lower)
    honest = delta_at(nodes, LARGE)
    assert honest.lower <= truth.upper
    assert truth.lower <= honest.upper
    forgetful = replace(nodes, side=replace(nodes.side, dropped=0.0))
    assert delta_at(forgetful, LARGE).upper < truth.lower


@pytest.mark.parametrize("in_two", [False, True], ids=["whole", "in large and small steps"])
def test_a_strip_that_holds_a_zero_is_rejected_on_every_kind_of_line(in_two):
    def made(side):
        if in_two:
            return moment_function.make_split_line(side, split_at(side, 2.0, 0.8, side.x.size), 2.0)
        return moment_function.make_line(side, 2.0)

    side = make_side(PAIR, remove=True, mass_budget=1e-15)
    # 1 - pi + pi e^{i a y} vanishes at pi = 1/2, y = pi sigma: a flat curvature hides it
    flat = made(replace(side, curvature=np.full(side.x.size, 1e-9)))
    assert flat.ell.size > made(side).ell.size  # a lower strip, so more points
    assert float(flat.ell.imag.min()) >= 0
