"""The loss stays on the branch that is continuous from the real axis, and lines are checked for it.

The broken twin everywhere is the principal logarithm near e^l = 1, which the accountant once used.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.accounting import lines
from userdp.accounting.contour import line, privacy_loss
from userdp.accounting.contour.closed import Bounds
from userdp.accounting.contour.privacy_loss import Complexes, Floats
from userdp.accounting.mechanisms import binomial_steps
from userdp.core.errors import FailureError

pytestmark = pytest.mark.filterwarnings("error")

P, GROUP, SIGMA, STEPS = 0.9733493053471883, 46, 10.168792074699509, 17023
DELTA = 3.588470814622538e-17
MECHANISM = binomial_steps(
    sampling_probability=P, group_size=GROUP, noise_multiplier=SIGMA, steps=STEPS
)
TRUTH = 169834.8857011  # by 30-digit mpmath, and by the proof (`test_proof`)


def use_the_principal_logarithm(patch: pytest.MonkeyPatch) -> None:
    right = privacy_loss.on_branch

    def broken(value: Complexes, y: Floats, slope: Floats) -> Complexes:
        ell = right(value, y, slope)
        return lines.principal_near_one(ell, ell[0].real) if y.size else ell

    patch.setattr(privacy_loss, "on_branch", broken)


def drop_the_check_of_the_branch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(line, "is_on_branch", lambda *_: True)


def drop_the_check_of_the_sums(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(line, "sums_agree", lambda *_: True)


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


def test_brackets_that_exclude_each_other_are_refused_not_joined() -> None:
    assert Bounds(1.0, 2.0).meet(Bounds(1.5, 3.0)) == Bounds(1.5, 2.0)
    with pytest.raises(FailureError, match="exclude each other"):
        Bounds(1.0, 2.0).meet(Bounds(2.1, 3.0))


def rises(law: privacy_loss.ShiftLaw, x: float, height: float) -> bool:
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
        law = privacy_loss.ShiftLaw(a, np.log(p / p.sum()), 0.0)
        x, height = rng.uniform(-4.0, 6.0), 10 ** rng.uniform(-1.0, 0.6)
        if privacy_loss.turns_upwards(law, x, height):
            said += 1
            assert rises(law, x, height)
        else:
            refused += not rises(law, x, height)
    assert min(said, refused) > 25, "both answers are needed for this to say anything"


def test_a_loss_that_turns_back_below_the_axis_is_not_said_to_turn_upwards() -> None:
    """One term nearly back at half a turn, and one beyond it, beside a large one that stays."""
    chances, a = np.array([0.9, 0.05, 0.05]), np.array([0.0, 1.0, 1.5])
    law = privacy_loss.ShiftLaw(a, np.log(chances) + 0.5 * a**2, 0.0)
    assert not rises(law, 0.0, 0.99 * np.pi)
    assert not privacy_loss.turns_upwards(law, 0.0, 0.99 * np.pi)
