import math

import numpy as np
import pytest
from scipy import stats

from tests.plans import changed_plan, els_plan, uls_plan
from userdp.core.errors import UseError
from userdp.plans import StepRecord
from userdp.sampling import (
    FixedSizeUsers,
    PoissonExamples,
    PoissonPooled,
    PoissonSubjects,
    PoissonUsers,
)
from userdp.sampling.draws import Sampler, secret_generator
from userdp.sampling.poisson import subject_probability

COUNTS = np.array([1, 2, 9, 30] * 25)


def sampler_of(plan, counts, seed=None):
    return Sampler(plan.sampling, counts, secret_generator(seed))


def draws(plan, counts, number, seed=0):
    sampler = sampler_of(plan, counts, seed)
    return [sampler.draw() for _ in range(number)]


def test_a_uls_unit_is_a_user_with_at_most_g_distinct_examples_of_its_own():
    for cohort in draws(uls_plan(), COUNTS, 50):
        assert len(cohort.users) == len(cohort.examples) == cohort.offsets[-1]
        for start, end in zip(cohort.offsets[:-1], cohort.offsets[1:], strict=True):
            (user,) = set(cohort.users[start:end].tolist())
            examples = cohort.examples[start:end].tolist()
            assert len(set(examples)) == len(examples) == min(4, COUNTS[user])
            assert max(examples) < COUNTS[user]


def test_an_els_unit_is_one_example_and_no_user_has_more_than_g():
    for cohort in draws(els_plan(), COUNTS, 50):
        assert (np.diff(cohort.offsets) == 1).all()
        assert (cohort.examples < np.minimum(COUNTS[cohort.users], 4)).all()
        pairs = list(zip(cohort.users.tolist(), cohort.examples.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)


def p_value_of_sizes(plan, total, probability):
    """Chi-square test of cohort sizes against Binomial(total, probability), tails merged."""
    sizes = np.array([cohort.units for cohort in draws(plan, COUNTS, 4_000)])
    low, high = stats.binom.ppf([0.01, 0.99], total, probability).astype(int)
    observed = np.bincount(np.clip(sizes, low, high) - low, minlength=high - low + 1)
    edges = stats.binom.cdf(np.arange(low, high), total, probability)
    return stats.chisquare(observed, np.diff([0, *edges, 1]) * len(sizes)).pvalue


SAMPLED = pytest.mark.parametrize(
    ("plan", "total"), [(uls_plan(), 100), (els_plan(), 275)], ids=["ULS", "ELS"]
)


@SAMPLED
def test_invariant_1_the_sampler_draws_with_the_accounted_probability(plan, total):
    assert p_value_of_sizes(plan, total, plan.mechanism.law.probability) > 1e-4


@SAMPLED
def test_broken_twin_of_invariant_1_a_sampler_with_another_probability_is_caught(plan, total):
    other = changed_plan(plan, sampling_probability=plan.sampling.sampling_probability * 1.2)
    assert p_value_of_sizes(other, total, plan.mechanism.law.probability) < 1e-4


def test_els_reaches_every_capped_example_equally():
    counts = np.array([2, 7, 1])
    plan = els_plan(population=7, batch_size=3.5)
    seen = np.zeros((3, 4), int)
    for cohort in draws(plan, counts, 4_000):
        np.add.at(seen, (cohort.users, cohort.examples), 1)
    assert (seen > 0).tolist() == [[True] * 2 + [False] * 2, [True] * 4, [True] + [False] * 3]
    assert stats.chisquare(seen[seen > 0]).pvalue > 1e-4


def test_uls_draws_a_users_examples_afresh_and_uniformly():
    plan = uls_plan(population=1, cohort_size=1, group_size=2)
    seen = np.zeros(5, int)
    for cohort in draws(plan, np.array([5]), 4_000):
        seen[cohort.examples] += 1
    assert stats.chisquare(seen).pvalue > 1e-4


def test_invariant_2_empty_draws_come_as_often_as_independent_coins_give_them():
    """Two users at q = 1/2: no head in a quarter of all steps, which are cohorts without units."""
    plan = uls_plan(population=2, cohort_size=1)
    empty = [cohort for cohort in draws(plan, np.array([3, 3]), 2_000) if cohort.units == 0]
    assert stats.binomtest(len(empty), 2_000, 0.25).pvalue > 1e-4
    assert all(len(cohort.users) == 0 for cohort in empty)


def test_broken_twin_of_invariant_4_a_probability_from_the_data_moves_with_one_user():
    def from_data(counts):
        return 10 / len(counts)

    assert from_data(COUNTS) != from_data(COUNTS[:-1])
    plan = uls_plan()
    recorded = [sampler_of(plan, counts).sampling for counts in (COUNTS, COUNTS[:-1])]
    assert recorded[0] == recorded[1] == StepRecord.of_plan(plan).sampling


def test_invariant_2_steps_are_independent():
    sizes = [cohort.units for cohort in draws(uls_plan(), COUNTS, 2_000)]
    assert abs(np.corrcoef(sizes[:-1], sizes[1:])[0, 1]) < 0.1


def test_the_shuffle_says_what_it_is_and_visits_everyone_once_per_pass():
    plan = uls_plan(unsafe_shuffle=True, group_size=1)
    sampler = sampler_of(plan, COUNTS, 1)
    assert sampler.sampling == StepRecord.of_plan(plan).sampling
    assert sampler.sampling.kind == "unsafe-shuffle-users"
    assert not sampler.sampling.covered
    users = np.concatenate([sampler.draw().users for _ in range(10)])
    assert sorted(users.tolist()) == list(range(100))


@pytest.mark.parametrize("kind", [PoissonUsers, PoissonExamples, PoissonPooled, PoissonSubjects])
@pytest.mark.parametrize("probability", [0.0, -0.1, 1.5, math.nan, math.inf])
def test_invariant_8_a_probability_that_is_none_is_refused(kind, probability):
    with pytest.raises(UseError, match="sampling_probability"):
        kind(sampling_probability=probability, group_size=1)


# What a unit of each sampling is, and how likely it joins a step.

USERS = np.array([0, 0, 0, 4, 7, 7])


@pytest.mark.parametrize(
    ("kind", "ends"), [(PoissonPooled, [0, 6]), (PoissonSubjects, [0, 3, 4, 6])]
)
def test_a_unit_is_all_that_was_drawn_or_all_of_one_subject(kind, ends):
    sampling = kind(sampling_probability=0.1, group_size=3)
    assert sampling.unit_offsets(USERS).tolist() == ends
    assert sampling.unit_offsets(USERS[:0]).tolist() == [0]


def test_a_subject_is_in_a_step_if_any_of_its_examples_is():
    assert subject_probability(0.5, 2) == pytest.approx(0.75, rel=1e-13)
    assert subject_probability(0.5, 2) >= 0.75
    assert subject_probability(1.0, 3) == 1.0


def test_the_denominator_of_subjects_is_of_those_that_were_declared():
    sampling = PoissonSubjects(sampling_probability=0.5, group_size=2)
    assert sampling.expected_units(1000) == pytest.approx(750, rel=1e-12)


@pytest.mark.parametrize(("total", "chance"), [(0, 0.0), (5, 1.0), (10, 1.0), (40, 0.25)])
def test_a_batch_of_fixed_size_holds_each_unit_with_its_share(total, chance):
    assert FixedSizeUsers(batch_size=10, group_size=1, least_population=10).chance(total) == chance
