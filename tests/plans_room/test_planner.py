"""From a request to a frozen plan, or to a reason why not and the nearest that is feasible."""

import itertools
import math
import re

import pytest

from tests.plans import changed_plan
from tests.plans_room.conftest import request, synthetic_norms
from userdp.accounting import binomial_steps, calibrate
from userdp.core.errors import UseError
from userdp.plans.planner import propose
from userdp.plans.proposal import PrivacyBudget
from userdp.plans.provenance import Provenance, Release
from userdp.plans.resolve_plan import PlanFields, resolve


@pytest.fixture(scope="module")
def proposal():
    return propose(request())


def steps_of(candidate, *, p, group_size=1):
    return binomial_steps(
        sampling_probability=p,
        group_size=group_size,
        noise_multiplier=candidate["noise_multiplier"],
        steps=50,
    )


def test_every_candidate_is_within_the_budget_and_barely(proposal):
    """By the mechanism of the papers: ULS with q = M / users, ELS with G examples of a user."""
    assert set(proposal.candidates) == {
        *(f"ULS, G = {size}" for size in (1, 2, 4, 8)),
        "ELS, median rule",
    }
    for name, one in proposal.candidates.items():
        if name.startswith("ELS"):
            mechanism = steps_of(one, p=64 / 6000, group_size=6)
        else:
            mechanism = steps_of(one, p=64 / one["group_size"] / 1000)
        assert mechanism.epsilon(1e-6).upper <= 4.0
        less = mechanism.with_noise_multiplier(one["noise_multiplier"] * (1 - 1e-4))
        assert less.epsilon(1e-6).upper > 4.0


def test_the_plan_is_the_candidate_of_least_noise(proposal):
    plan, norms = proposal.plan, proposal.norms
    noise = {
        name: one["noise_multiplier"]
        * (norms.example_norm if name.startswith("ELS") else norms.user_norms[one["group_size"]])
        / one["units"]
        for name, one in proposal.candidates.items()
    }
    best = min(noise, key=noise.__getitem__)
    assert [row["candidate"] for row in proposal.rows() if row["chosen"]] == [best]
    assert noise[best] == pytest.approx(plan.noise_std / plan.denominator)
    assert proposal.candidates[best]["group_size"] == plan.sampling.group_size
    assert proposal.prediction["epsilon"] == plan.guarantee().epsilon <= 4.0


def estimate_and_double(norms, *, budget, population):
    """Algorithm 3, with σ(M)/M for its σ(M): the noise where it ends, for 50 steps at (4, 1e-6)."""

    def noise(group, size):
        steps = binomial_steps(
            sampling_probability=size / population, noise_multiplier=1.0, steps=50
        )
        found = calibrate(steps, target_epsilon=4.0, target_delta=1e-6)
        return found.noise_multiplier * norms.user_norms.get(group, math.inf) / size

    group, size = 1, 32
    while 2 * group * size <= budget:
        group, size = min((2 * group, size), (group, 2 * size), key=lambda one: noise(*one))
    return noise(group, size)


@pytest.mark.parametrize("shared", [0.0, 0.2])
def test_the_best_is_at_least_as_good_as_estimate_and_double(shared):
    norms = synthetic_norms(shared=shared, most=8)
    found = propose(request(norms=norms, budget=128, algorithm="uls"))
    theirs = estimate_and_double(norms, budget=128, population=1000)
    assert found.prediction["noise_std_per_gradient"] <= theirs * (1 + 1e-5)


def test_without_norms_the_plan_is_the_presets_to_the_last_digit():
    asked = {"epsilon": 4.0, "population": 6_000}
    nothing = {"norms": None, "budget": None, "steps": None, "delta": None}
    assert propose(request(**asked, **nothing)).plan == resolve(chosen=PlanFields(**asked))[0]
    given = propose(request(**asked, **(nothing | {"steps": 20, "l2_clip_norm": 0.2})))
    assert given.plan == resolve(chosen=PlanFields(**asked, steps=20, l2_clip_norm=0.2))[0]
    large = propose(request(epsilon=50.0, population=20_000, **nothing))
    assert large.plan.guarantee().epsilon <= 50.0, "of twice this epsilon there is no plan"
    few = propose(request(**asked, **(nothing | {"budget": 1.5, "most_noise": 9.0})))
    assert (few.plan.sampling.group_size, few.plan.denominator) == (1, pytest.approx(1.5))
    with pytest.raises(UseError, match="no gradient norms"):
        propose(request(**asked, **nothing, algorithm="els"))


def test_norms_choose_only_what_the_rules_leave_open(norms):
    found = propose(request(norms=norms, budget=None, steps=None))
    by_rule, _ = resolve(chosen=PlanFields(epsilon=4.0, population=1000, delta=1e-6))
    assert found.plan.steps == by_rule.steps
    assert found.compute == by_rule.denominator * by_rule.sampling.group_size
    assert found.plan.clip.l2_norm == norms.user_norms[found.plan.sampling.group_size]


@pytest.mark.slow
def test_it_says_what_more_of_each_would_gain(proposal):
    """By hand: half the sampling probability; twice the cohort; twice the budget."""
    plan, twice = proposal.plan, proposal.prediction["noise_with_twice"]
    size, sigma = plan.denominator, plan.noise.multiplier
    wanted = (("people", 64, 2000, 4.0), ("gradients", 128, 1000, 4.0), ("epsilon", 64, 1000, 8.0))
    for name, budget, population, epsilon in wanted:
        again = propose(
            request(budget=budget, population=population, epsilon=epsilon, algorithm="uls")
        ).candidates[f"ULS, G = {plan.sampling.group_size}"]
        left = again["noise_multiplier"] / again["units"] / (sigma / size)
        assert twice[name] == pytest.approx(left, rel=1e-5)
        assert twice[name] < 1


def test_the_cohort_never_exceeds_the_population_nor_compute_the_budget():
    found = propose(request(budget=640, population=100, median_examples=None))
    for one in found.candidates.values():
        assert one["units"] <= 100
        assert one["units"] * one["group_size"] <= 640
    assert found.candidates["ULS, G = 1"]["units"] == 100


@pytest.mark.slow
def test_els_wins_where_single_gradients_are_shorter_than_those_of_users():
    """By Equation 7; users with few, long examples make the median user's norm the longer one."""
    norms = synthetic_norms(shared=1.0, own=1e-12, most=8, example_norm=0.7)
    found = propose(request(norms=norms))
    assert found.plan.algorithm == "ELS"
    assert found.plan.sampling.group_size == 6
    assert (found.plan.population, found.plan.denominator) == (6000, pytest.approx(64))
    assert found.plan.clip.l2_norm == 0.7
    assert found.plan.guarantee().epsilon <= 4.0
    assert found.prediction["noise_ratio_els_to_uls"] < 1
    assert "ELS adds less noise" in found.reason
    declared = propose(request(norms=norms, population_examples=5000))
    assert declared.plan.population == 5000, "the denominator is declared, at most users times G"
    assert "B is more than all" in propose(request(norms=norms, population_examples=63)).reason


def test_without_a_median_els_is_not_considered():
    found = propose(request(median_examples=None))
    assert found.plan.algorithm == "ULS"
    assert "ELS, median rule" not in found.candidates
    assert "ELS was not considered" in found.reason
    with pytest.raises(UseError, match="median"):
        propose(request(median_examples=None, algorithm="els"))


def test_what_was_chosen_from_dp_answers_is_calibrated_to_the_rest():
    median = Release(name="median", query_id="query-1", epsilon=0.5, value=6)
    found = propose(request(releases=(median,), median_examples=None))
    assert found.plan.budget.target_epsilon == pytest.approx(3.5)
    assert found.plan.guarantee().epsilon + 0.5 <= 4.0
    values = found.to_dict()
    assert values["budget"]["releases"][0]["epsilon"] == 0.5
    assert values["basis"] == "DP releases in the store's ledger: median examples per user"
    spent = changed_plan(found.plan, noise_multiplier=found.plan.noise.multiplier * 0.999)
    assert spent.guarantee().epsilon > 3.5


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Provenance.NON_PRIVATE, "non-private statistics: gradient norms, l2 clip norm"),
        (Provenance.HELD_OUT, "statistics of held-out users: gradient norms, l2 clip norm"),
    ],
)
def test_a_plan_from_exact_norms_says_so(source, words, tmp_path):
    found = propose(request(norms=synthetic_norms(source=source, most=2)))
    assert found.basis == words
    assert set(found.plan.origins) == {"clip", "clip.l2_norm"}
    found.save(tmp_path / "plan.json")
    assert (tmp_path / "plan.json").stat().st_mode & 0o077 == 0


def refused(**changes) -> UseError:
    with pytest.raises(UseError) as caught:
        propose(request(**changes))
    return caught.value


def test_a_bad_budget_gets_numbers_and_the_nearest_feasible_one():
    norms = synthetic_norms(shared=0.05, most=4)
    error = refused(epsilon=0.1, norms=norms)
    assert "epsilon = 0.1" in error.message
    assert "next to nothing would be learned" in error.message
    epsilon = float(re.search(r"epsilon ([\d.]+) for training", error.hint)[1])
    found = propose(request(epsilon=epsilon, norms=norms, algorithm="uls"))
    assert found.prediction["noise_to_signal"] <= 0.1
    assert 0.1 < epsilon < 4


NUMBERS = {
    "epsilon": (0.0, math.nan, math.inf),
    "delta": (0.0, math.nan),
    "budget": (0.5, math.nan, math.inf),
    "steps": (0,),
    "population": (0, math.nan),
    "l2_clip_norm": (math.nan,),
    "most_noise": (math.nan,),
    "algorithm": ("both",),
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in NUMBERS.items() for value in values]
)
def test_what_is_out_of_range_is_refused_by_name(field, value):
    assert field in refused(**{field: value}).message


def test_a_budget_that_no_noise_meets_or_nothing_is_left_of_is_refused():
    few = {"epsilon": 1e-9, "delta": 1e-12, "budget": 1000.0}
    assert "no noise multiplier" in refused(**few).message
    assert "nothing is left" in refused(releases=(release(4.0),)).message


def release(epsilon: float) -> Release:
    return Release(name="median", query_id=f"query-{epsilon}", epsilon=epsilon)


def test_the_parts_never_exceed_the_total():
    costs = [(), (0.01,), (0.03, 0.02), (1 / 30, 1 / 70, 1 / 90)]
    for epsilon, parts in itertools.product([0.1, 1 / 3, 4.0, 7.9], costs):
        budget = PrivacyBudget(epsilon=epsilon, delta=1e-6, releases=tuple(map(release, parts)))
        assert math.fsum([*parts, budget.training_epsilon]) <= epsilon
        assert 0 < budget.training_epsilon <= epsilon
