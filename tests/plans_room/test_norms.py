"""Gradient norms as a file; and those under DP are believed only where noise leaves something."""

import json
import math
import stat

import numpy as np
import pytest

from tests.plans_room.conftest import synthetic_norms
from userdp.core.codec import encode
from userdp.core.errors import UseError
from userdp.plans.gradient_norms import GradientNorms, require_informative
from userdp.plans.provenance import Provenance
from userdp.queries.statistics import STEPS_PER_DOUBLING, draw_medians, rank_error

HALF_A_STEP = 2 ** (0.5 / STEPS_PER_DOUBLING)


@pytest.mark.pitfall(number=44)
@pytest.mark.parametrize(
    ("source", "mode"),
    [(Provenance.PUBLIC, 0o644), (Provenance.NON_PRIVATE, 0o600), (Provenance.HELD_OUT, 0o600)],
)
def test_a_file_says_what_was_saved_and_private_norms_are_their_owners_alone(
    tmp_path, source, mode
):
    norms, path = synthetic_norms(source=source), tmp_path / "norms.json"
    norms.save(path)
    assert GradientNorms.load(path) == norms
    values = json.loads(path.read_text())
    assert values["schema"] == "userdp.norms/5"
    assert list(values["user_norms"]) == ["1", "2", "4", "8", "16", "32", "64"]
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize(
    "changes",
    [
        {"user_norms": {}},
        {"user_norms": {2: 1.0}},
        {"user_norms": {1: math.nan}},
        {"user_norms": {1: 0.0}},
        {"user_norms": {1: math.inf}},
        {"user_norms": {1: 1.0, 0: 1.0}},
        {"example_norm": math.nan},
        {"users": 0},
        {"source": Provenance.DP_RELEASE},
        {"ledger_line": "query-1"},
        {"median_examples_per_user": 0},
    ],
)
def test_norms_that_cannot_be_are_refused(changes):
    with pytest.raises(UseError):
        synthetic_norms(**changes)


@pytest.mark.parametrize(
    "changes", [{"source": "somewhere"}, {"user_norms": {"1": "nan"}}, {"more": 1}]
)
def test_a_file_that_holds_no_norms_is_bad_use(tmp_path, norms, changes):
    (tmp_path / "norms.json").write_text(json.dumps({**encode(norms), **changes}))
    with pytest.raises(UseError):
        GradientNorms.load(tmp_path / "norms.json")


def ranks_off(norms: np.ndarray, median: float) -> float:
    """How many users stand between a released median and the middle one; 0 within its own step."""
    below, above = (norms < median / HALF_A_STEP).sum(), (norms > median * HALF_A_STEP).sum()
    return max(below, above) - len(norms) / 2


@pytest.mark.slow
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
        require_informative(12, error)
    assert "71 users or more" in str(refused.value)
    assert "public rules" in str(refused.value)
    require_informative(71, error)
    require_informative(12, None)
