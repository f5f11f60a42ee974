"""Norms under DP are believed only where their noise leaves something to be told."""

import numpy as np
import pytest

from userdp.errors import UseError
from userdp.plans.norms import require_told
from userdp.queries.statistics import STEPS_PER_DOUBLING, draw_medians, rank_error

HALF_A_STEP = 2 ** (0.5 / STEPS_PER_DOUBLING)


def ranks_off(norms: np.ndarray, median: float) -> float:
    """How many users stand between a released median and the middle one; 0 within its own step."""
    below, above = (norms < median / HALF_A_STEP).sum(), (norms > median * HALF_A_STEP).sum()
    return max(below, above) - len(norms) / 2


@pytest.mark.parametrize(("users", "epsilon", "names"), [(400, 1.0, 2), (60, 2.0, 1)])
def test_a_release_stands_within_its_rank_error(users, epsilon, names):
    norms = np.exp(2 * np.random.default_rng(0).normal(size=users))
    bound, over = rank_error(epsilon=epsilon, names=names), 0
    for _ in range(100):
        drawn = draw_medians({str(n): norms for n in range(names)}, epsilon=epsilon)
        over += ranks_off(norms, drawn["0"]) > bound
    assert over <= 12, "5% of 100, and three standard deviations"


def test_norms_of_twelve_people_are_refused_and_how_many_would_do_is_said():
    """A norm of 7,512 beside 0.15 was once the basis of a plan."""
    error = rank_error(epsilon=0.5, names=1)
    with pytest.raises(UseError, match="say nothing") as refused:
        require_told(12, error)
    assert "71 users or more" in str(refused.value)
    require_told(71, error)
    require_told(12, None)
