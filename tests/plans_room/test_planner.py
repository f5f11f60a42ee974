"""From a request to a frozen plan, or to a reason why not and the nearest that is feasible."""

import json
import math
import re

import pytest

from tests.plans import as_plan, changed_plan
from tests.plans_room.conftest import request, synthetic_norms
from userdp.errors import UseError
from userdp.plans import Plan
from userdp.plans.origin import Provenance
from userdp.plans.planner import propose
from userdp.plans.proposal import Release


@pytest.fixture(scope="module")
def proposal():
    return propose(request())


def test_the_plan_is_the_cell_recommended_and_within_the_budget(proposal):
    plan, cell = proposal.plan, proposal.candidates["ULS, problem (10), all G"]
    assert plan.algorithm == "ULS"
    assert (plan.sampling.group_size, plan.steps) == (cell.group_size, 50)
    assert plan.denominator == pytest.approx(cell.units)
    assert plan.noise.multiplier == cell.noise_multiplier
    assert plan.clip.l2_norm == cell.norm
    assert plan.noise_std / plan.denominator == pytest.approx(cell.noise_std)
    assert proposal.prediction["epsilon"] == plan.guarantee().epsilon <= 4.0
    assert plan.guarantee().epsilon > 3.999
    assert proposal.candidates["ULS, Estimate-and-Double"].noise_std >= cell.noise_std


def test_all_answers_stand_side_by_side_in_the_file(proposal, tmp_path):
    proposal.save(tmp_path / "plan.json")
    values = json.loads((tmp_path / "plan.json").read_text())
    assert values["schema"] == "userdp.proposal/2"
    assert as_plan(values["plan"]) == proposal.plan
    assert set(values["candidates"]) == {
        "ULS, problem (10), all G",
        "ULS, Estimate-and-Double",
        "ELS, median rule",
        *(f"ULS, G = {size}" for size in (1, 2, 4, 8)),
    }
    assert [row["candidate"] for row in proposal.rows() if row["chosen"]]
    assert values["basis"] == "declared constants and public statistics"
    assert Plan.load(tmp_path / "plan.json") == proposal.plan
    proposal.plan.save(tmp_path / "bare.json")
    assert Plan.load(tmp_path / "bare.json") == proposal.plan


def test_els_wins_where_single_gradients_are_shorter_than_those_of_users():
    """By Equation 7; users with few, long examples make the median user's norm the longer one."""
    asked = request(norms=synthetic_norms(shared=1.0, own=1e-12, most=8, example_norm=0.7))
    found = propose(asked)
    assert found.plan.algorithm == "ELS"
    assert found.plan.sampling.group_size == 6
    assert found.plan.population == 6000
    assert found.plan.denominator == pytest.approx(64)
    assert found.plan.clip.l2_norm == 0.7
    assert found.plan.guarantee().epsilon <= 4.0
    assert found.prediction["noise_ratio_els_to_uls"] < 1
    assert "ELS adds less noise" in found.reason


def test_without_a_median_els_is_not_considered():
    found = propose(request(median_examples=None))
    assert found.plan.algorithm == "ULS"
    assert "ELS, median rule" not in found.candidates
    assert "ELS was not considered" in found.reason
    with pytest.raises(UseError, match="median"):
        propose(request(median_examples=None, algorithm="els"))


@pytest.mark.slow
def test_what_was_chosen_from_dp_answers_is_calibrated_to_the_rest():
    median = Release(name="median", query_id="query-1", epsilon=0.5, value=6)
    asked = request(releases=(median,), median_examples=None)
    found = propose(asked)
    assert found.plan.budget.target_epsilon == pytest.approx(3.5)
    assert found.plan.guarantee().epsilon + 0.5 <= 4.0
    values = found.to_dict()
    assert values["budget"]["releases"][0]["epsilon"] == 0.5
    assert values["basis"] == "DP releases in the store's ledger: median examples per user"
    spent = changed_plan(found.plan, noise_multiplier=found.plan.noise.multiplier * 0.999)
    assert spent.guarantee().epsilon > 3.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Provenance.NON_PRIVATE, "non-private statistics: gradient norms, l2 clip norm"),
        (Provenance.HELD_OUT, "statistics of held-out users: gradient norms, l2 clip norm"),
    ],
)
def test_a_plan_from_exact_norms_says_so(source, words, tmp_path):
    norms = synthetic_norms(source=source)
    found = propose(request(norms=norms))
    assert found.basis == words
    assert set(found.plan.origins) == {"clip", "clip.l2_norm"}
    found.save(tmp_path / "plan.json")
    assert (tmp_path / "plan.json").stat().st_mode & 0o077 == 0


def refused(**changes) -> UseError:
    with pytest.raises(UseError) as caught:
        propose(request(**changes))
    return caught.value


@pytest.mark.slow
def test_a_bad_budget_gets_numbers_and_the_nearest_feasible_one():
    norms = synthetic_norms(shared=0.05, most=4)
    error = refused(epsilon=0.1, norms=norms)
    assert "epsilon = 0.1" in error.message
    assert "B = 64" in error.message
    assert "σ =" in error.message
    assert "M =" in error.message
    epsilon = float(re.search(r"epsilon ([\d.]+) for training", error.hint)[1])
    found = propose(request(epsilon=epsilon, norms=norms, algorithm="uls"))
    assert found.prediction["noise_to_signal"] <= 0.1
    assert 0.1 < epsilon < 4


def test_a_budget_that_no_noise_meets_is_refused():
    error = refused(epsilon=1e-9, delta=1e-12, budget=1000.0, steps=1000)
    assert "no noise multiplier" in error.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": 0.5}, "budget"),
        ({"budget": math.nan}, "budget"),
        ({"steps": 0}, "steps"),
        ({"population": 0}, "population"),
        ({"population": math.nan}, "population"),
        ({"l2_clip_norm": math.nan}, "l2_clip_norm"),
        ({"most_noise": math.nan}, "most_noise"),
        ({"algorithm": "both"}, "algorithm"),
    ],
)
def test_what_cannot_be_planned_is_refused(changes, message):
    error = refused(**changes)
    assert message in error.message
