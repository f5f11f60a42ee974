import itertools
import math

import pytest

from tests.plans import as_plan, changed_plan, els_plan, uls_plan
from userdp.accounting import Accountant, binomial_steps
from userdp.accounting.group_privacy import Conversion, group_guarantee
from userdp.core.codec import encode
from userdp.core.errors import UseError
from userdp.noise.clip_forms import AdaptiveClipping, ClipForm, LayerSplit
from userdp.plans import Plan


def test_invariant_1_the_mechanism_has_the_plans_own_parameters():
    plan = uls_plan()
    assert plan.mechanism == binomial_steps(sampling_probability=0.1, noise_multiplier=2.0, steps=5)
    plan = els_plan()
    assert plan.mechanism == binomial_steps(
        sampling_probability=0.05, group_size=4, noise_multiplier=3.0, steps=5
    )


@pytest.mark.pitfall(number=4)
def test_invariant_4_the_denominator_is_a_public_constant_of_the_plan():
    assert uls_plan().denominator == pytest.approx(10)
    assert els_plan().denominator == pytest.approx(20)
    assert uls_plan().noise_std == 1.0


CLIPPING = {
    "clip_form": ClipForm.NORMALIZED,
    "layer_split": LayerSplit.DIMENSION,
    "adaptive": AdaptiveClipping(quantile=0.4, count_noise_std=9.0),
}


@pytest.mark.parametrize(
    "plan",
    [
        uls_plan(),
        changed_plan(uls_plan(), **CLIPPING),
        els_plan(accountant=Accountant.GROUP_PRIVACY),
    ],
)
def test_a_plan_survives_json_and_its_digest_tells_plans_apart(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert again.digest == plan.digest
    with pytest.raises(UseError, match="unknown"):
        as_plan({**encode(plan), "surprise": 1})
    assert changed_plan(plan, steps=6).digest != plan.digest


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "userdp.plan/0"}'])
def test_a_file_that_is_no_plan_is_refused(text, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(UseError):
        Plan.load(path)


def test_form_and_split_do_not_move_epsilon():
    for form, split in itertools.product(ClipForm, [None, *LayerSplit]):
        plan = changed_plan(uls_plan(), clip_form=form, layer_split=split)
        assert plan.guarantee() == uls_plan().guarantee()
        assert plan.noise_std == uls_plan().noise_std


BAD = {
    "cohort_size": (math.nan, 0, 101), "population": (0,), "l2_clip_norm": (math.nan, -1.0),
    "noise_multiplier": (math.nan, 0.0), "target_delta": (1.0,), "steps": (0,),
    "group_size": (0,), "item_clip_norm": (math.inf,), "clip_form": ("soft",),
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, one) for name in BAD for one in BAD[name]])
def test_bad_constants_are_refused(name, value):
    with pytest.raises(UseError):
        uls_plan(**{name: value})


@pytest.mark.pitfall(number=45)
def test_a_sampling_without_a_proven_price_has_no_mechanism():
    with pytest.raises(UseError, match="no price"):
        _ = uls_plan(unsafe_shuffle=True).mechanism


@pytest.mark.pitfall(number=23)
def test_invariant_8_calibration_returns_the_side_within_budget():
    plan = uls_plan(noise_multiplier=None, target_epsilon=2.0)
    assert plan.guarantee().epsilon <= 2.0
    less = changed_plan(plan, noise_multiplier=plan.noise.multiplier * 0.99)
    assert less.guarantee().epsilon > 2.0


def test_a_plan_without_a_target_has_no_noise_to_find():
    with pytest.raises(UseError, match="target_epsilon"):
        uls_plan().calibrated()


@pytest.mark.pitfall(number=1)
def test_unsafe_shuffling_claims_nothing():
    guarantee = uls_plan(unsafe_shuffle=True).guarantee()
    assert guarantee.epsilon == math.inf
    assert str(guarantee.sampling) == "unsafe-shuffle-users"


def test_fewer_steps_cost_less_and_none_cost_nothing():
    plan = uls_plan()
    assert plan.guarantee(0).epsilon == 0
    assert plan.guarantee(2).epsilon < plan.guarantee().epsilon


def test_clipping_in_words_says_all_that_differs_from_the_papers():
    assert uls_plan().clipping is None
    for said in ("normalized", "by layer (dimension)", "quantile 0.4, count noise 9"):
        assert said in changed_plan(uls_plan(), **CLIPPING).clipping


@pytest.mark.slow
@pytest.mark.parametrize("accountant", [Accountant.GROUP_PRIVACY, Accountant.GROUP_PRIVACY_VADHAN])
def test_group_privacy_claims_what_the_lemma_makes_of_one_example(accountant):
    """Chua et al., Proposition 1, applied by hand to the curve of a user with one example."""
    plan = els_plan(noise_multiplier=None, target_epsilon=2.0, accountant=accountant)
    assert plan.algorithm == "GP"
    found = plan.guarantee()
    assert str(found.accountant) == accountant
    assert 1.999 < found.epsilon <= 2.0
    single = binomial_steps(
        sampling_probability=plan.sampling.sampling_probability,
        noise_multiplier=plan.noise.multiplier,
        steps=plan.steps,
    )
    lemma = {"group-privacy": Conversion.BEST, "group-privacy-vadhan": Conversion.VADHAN}
    lifted = group_guarantee(0.5, single.delta(0.5).upper, 4, lemma[accountant])
    assert lifted.epsilon == 2.0
    assert 0.99e-5 < lifted.delta <= 1.0001e-5


@pytest.mark.parametrize("accountant", ["rdp", "dp-accounting", "group-privacy"])
def test_a_uls_plan_claims_by_our_accountant_alone(accountant):
    with pytest.raises(UseError, match="cannot claim"):
        changed_plan(uls_plan(), accountant=Accountant(accountant))
