"""The preset: a plan within its budget, from constants that look at nothing."""

import math

import pytest

from tests.speed import fast_then_slow
from userdp.core.errors import UseError
from userdp.plans.preset_defaults import Preset, preset
from userdp.plans.resolve_plan import PlanFields, resolve
from userdp.plans.small_delta import DeltaSize, size_of


@pytest.mark.parametrize("epsilon", [1, 4])
def test_the_plan_is_within_its_budget_and_uses_it(epsilon):
    chosen = preset(epsilon=epsilon, population=20_000)
    plan, _ = resolve(chosen=PlanFields(epsilon=epsilon, population=20_000))
    guarantee = plan.guarantee()
    assert 0.999 * epsilon < guarantee.epsilon <= epsilon
    assert guarantee.delta == chosen.delta == pytest.approx(20_000**-1.1)
    assert (plan.sampling.group_size, plan.steps) == (chosen.group_size, chosen.steps)
    assert plan.denominator == pytest.approx(chosen.cohort_size)
    assert plan.origins == {}, "its constants are declared ones"


@pytest.mark.parametrize("population", [100, 500, 20_000, 10**6, 10**9])
def test_the_rules_hold_for_every_population(population):
    chosen = preset(epsilon=4, population=population)
    assert 16 <= chosen.cohort_size <= 4096
    assert chosen.cohort_size <= population / 2
    assert math.log2(chosen.cohort_size).is_integer()
    assert size_of(chosen.delta, population) is DeltaSize.WITHIN_RULE
    assert preset(epsilon=4, population=population) == chosen


@pytest.mark.parametrize("population", fast_then_slow([6_000, 1_000, 100_000]))
@pytest.mark.parametrize("epsilon", [1, 4, 8])
def test_the_group_size_is_nearly_the_best_for_its_compute(epsilon, population):
    """σ / M over the signal of G examples, G^¼ of one's, within 10% of the least of 1, 2 and 4."""
    chosen = preset(epsilon=epsilon, population=population)

    def noise(group_size):
        size = chosen.group_size * chosen.cohort_size // group_size
        fields = PlanFields(
            epsilon=epsilon, population=population, cohort_size=size, group_size=group_size
        )
        plan, _ = resolve(chosen=fields)
        return plan.sum_noise_multiplier / plan.denominator / group_size**0.25

    assert noise(chosen.group_size) <= 1.1 * min(map(noise, (1, 2, 4)))
    assert noise(chosen.group_size) < noise(64), "many examples of few users cost more"


def test_only_the_kind_of_training_moves_the_learning_rate():
    full, low_rank = (preset(epsilon=4, population=1000, low_rank=flag) for flag in (False, True))
    assert full.learning_rate != low_rank.learning_rate
    names = [name for name in preset.__annotations__ if name != "return"]
    assert names == ["epsilon", "population", "delta", "low_rank"]


@pytest.mark.parametrize(
    ("named", "values"),
    [("epsilon", (0, math.nan, math.inf)), ("population", (0, 1000.5)), ("delta", (1, math.nan))],
)
def test_what_is_out_of_range_is_refused_by_name(named, values):
    for value in values:
        with pytest.raises(UseError, match=named):
            preset(**{"epsilon": 4, "population": 1000, named: value})


def test_the_sentence_leaves_out_what_was_given():
    chosen = preset(epsilon=4, population=20_000)
    words = {"steps": "100 steps", "delta": "(population^-1.1)", "learning_rate": "learning rate"}
    whole, less = chosen.sentence(), chosen.sentence(words.keys())
    assert all(said in whole and said not in less for said in words.values())
    assert chosen.sentence({*Preset.__dataclass_fields__}) == ""
