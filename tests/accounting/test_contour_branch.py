"""The loss stays on the branch that is continuous from the real axis, and lines are checked for it.

The broken twin everywhere is the principal logarithm near e^l = 1, which the accountant once used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from benchmarks.accounting import lines
from tests.accounting import oracle
from userdp.accounting import rdp
from userdp.accounting.contour import line, losses
from userdp.accounting.contour.bounds import Bounds
from userdp.accounting.contour.losses import Complexes, Floats
from userdp.accounting.contour.side import make_side
from userdp.accounting.mechanisms import binomial_steps
from userdp.errors import FailureError

pytestmark = pytest.mark.filterwarnings("error")

P, GROUP, SIGMA, STEPS = 0.9733493053471883, 46, 10.168792074699509, 17023
DELTA = 3.588470814622538e-17
MECHANISM = binomial_steps(
    sampling_probability=P, group_size=GROUP, noise_multiplier=SIGMA, steps=STEPS
)
TRUTH = 169834.8857011  # its own test asks the oracle


@cache
def scanned() -> lines.Count:
    return lines.scan(150, (1,))


def use_the_principal_logarithm(patch: pytest.MonkeyPatch) -> None:
    right = losses.on_branch

    def broken(value: Complexes, y: Floats, slope: Floats) -> Complexes:
        ell = right(value, y, slope)
        return lines.principal_near_one(ell, ell[0].real) if y.size else ell

    patch.setattr(losses, "on_branch", broken)


def drop_the_check_of_the_branch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(line, "is_on_branch", lambda *_: True)


def drop_the_check_of_the_sums(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(line, "sums_agree", lambda *_: True)


@pytest.mark.slow
def test_the_oracle_finds_the_delta_of_the_case_that_lost_a_turn() -> None:
    answer = oracle.delta(
        "remove", TRUTH, steps=STEPS, p=P, sigma=SIGMA, group_size=GROUP, at_least=1e-18
    )
    assert answer.agreement < 1e-15
    assert float(answer.value) == pytest.approx(DELTA, rel=1e-8)


def test_a_loss_that_turns_round_while_it_is_small_keeps_its_branch() -> None:
    found = MECHANISM.epsilon(DELTA)
    assert found.lower <= TRUTH + 1e-6
    assert found.upper >= TRUTH - 1e-6
    assert found.width <= 1e-6 * found.upper
    assert found.note == ""


@pytest.mark.pitfall(number=33)
def test_the_principal_logarithm_alone_misses_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    use_the_principal_logarithm(monkeypatch)
    drop_the_check_of_the_branch(monkeypatch)
    drop_the_check_of_the_sums(monkeypatch)
    found = MECHANISM.epsilon(DELTA)
    assert found.upper < TRUTH - 500  # a "certified" epsilon that is too small


@pytest.mark.parametrize("drop", [drop_the_check_of_the_branch, drop_the_check_of_the_sums])
def test_either_check_alone_keeps_a_lost_turn_out_of_the_bracket(
    monkeypatch: pytest.MonkeyPatch, drop: Callable[[pytest.MonkeyPatch], None]
) -> None:
    use_the_principal_logarithm(monkeypatch)
    drop(monkeypatch)
    found = MECHANISM.epsilon(DELTA)
    assert found.lower <= TRUTH <= found.upper


@pytest.mark.slow
def test_lines_from_the_corners_agree_with_a_loss_unwrapped_along_y() -> None:
    count = scanned()
    assert count.turned >= 30  # the scan looks where a branch can be lost
    assert count.lost == count.inexact == 0
    assert count.largest < 1e-12


def test_the_scan_catches_the_principal_logarithm() -> None:
    assert scanned().lost_by_principal >= 30


def test_a_value_next_to_y_times_the_slope_is_left_alone() -> None:
    y, slope = np.array([0.0, 1.0, 2.0]), np.array([0.0, 5.0])
    ell = np.outer(y, slope) * 1j + 0.7j + np.array([-0.2, 3.0])
    for turns in (-3, 0, 1):
        moved = losses.on_branch(ell + 2j * np.pi * turns, y, slope)
        np.testing.assert_allclose(moved, ell, rtol=0, atol=1e-13)
        assert losses.is_on_branch(ell + 2j * np.pi * turns, y, slope) == (turns == 0)


def test_the_renyi_bound_is_above_the_contour_bracket() -> None:
    upper = rdp.epsilon(
        DELTA,
        sampling_probability=P,
        noise_multiplier=SIGMA,
        group_size=GROUP,
        steps=STEPS,
        orders=(1.01, 1.02, 1.05),
    ).upper
    assert upper < 2 * TRUTH
    assert upper >= MECHANISM.epsilon(DELTA).lower


def test_brackets_that_exclude_each_other_are_refused_not_joined() -> None:
    assert Bounds(1.0, 2.0).meet(Bounds(1.5, 3.0)) == Bounds(1.5, 2.0)
    with pytest.raises(FailureError, match="exclude each other"):
        Bounds(1.0, 2.0).meet(Bounds(2.1, 3.0))


def rises(law: losses.Law, x: float, height: float) -> bool:
    """Whether Im l(x + iy) >= 0 up to ``height``, on a fine grid and by the continuous branch."""
    y = np.linspace(0.0, height, 4001)
    terms = np.exp(law.w[:, None] + law.a[:, None] * (x + 1j * y - 0.5 * law.a[:, None]))
    phase = np.unwrap(np.angle(terms.sum(axis=0)))
    return bool((phase >= -1e-9).all())


def test_where_the_loss_is_said_to_turn_upwards_it_does() -> None:
    rng = np.random.default_rng(11)
    said = refused = 0
    for _ in range(400):
        size = int(rng.integers(2, 7))
        a = np.concatenate([[0.0], np.sort(rng.uniform(0.05, 6.0, size - 1))])
        p = rng.dirichlet(np.full(size, 0.4)) + 1e-9
        law = losses.Law(a, np.log(p / p.sum()), 0.0)
        x, height = rng.uniform(-4.0, 6.0), 10 ** rng.uniform(-1.0, 0.6)
        if losses.turns_upwards(law, x, height):
            said += 1
            assert rises(law, x, height)
        else:
            refused += not rises(law, x, height)
    assert min(said, refused) > 25, "both answers are needed for this to say anything"


def test_a_loss_that_turns_back_below_the_axis_is_not_said_to_turn_upwards() -> None:
    """One term nearly back at half a turn, and one beyond it, beside a large one that stays."""
    chances, a = np.array([0.9, 0.05, 0.05]), np.array([0.0, 1.0, 1.5])
    law = losses.Law(a, np.log(chances) + 0.5 * a**2, 0.0)
    assert not rises(law, 0.0, 0.99 * np.pi)
    assert not losses.turns_upwards(law, 0.0, 0.99 * np.pi)


def test_a_line_is_held_sound_as_far_as_halfway_to_the_next_of_its_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between points only the bound of l'' over their surroundings speaks: it leaves no gap."""
    asked: list[float] = []

    def noted(law: losses.Law, x: Floats, y: Floats, reach: float = 0.0) -> tuple:
        if x.size > 1:
            asked.append(2 * reach / float(np.diff(x).max()))
        return losses.losses(law, x, y, reach)

    monkeypatch.setattr(line, "losses", noted)
    side = make_side(MECHANISM.with_steps(50).phases(), remove=True, mass_budget=1e-9)
    line.make_lines(side, 2.0)
    assert asked
    assert min(asked) >= 1 - 1e-9


@pytest.mark.parametrize(("imag", "sound"), [(0.5, False), (1.0, False), (1.3, True)])
def test_between_grid_points_the_loss_may_fall_as_far_as_its_bend_allows(
    imag: float, sound: bool
) -> None:
    """|d/dx Im l(x + iy)| <= y l'' / (1 - y^2 l''/2) = 0.5 * 6 / 0.25 = 12, half a step of 0.2."""
    height, x = 0.5, np.arange(0.0, 2.1, 0.2)
    law = losses.Law(np.array([0.0, 1.0]), np.log([0.9, 0.1]), 0.0)
    found = line.is_sound(
        law,
        x,
        np.array([height]),
        np.full((1, x.size), 1 + 1j * imag),
        np.full(x.size, imag / height),
        np.full(x.size, 6.0),
        height,
    )
    assert found is sound
