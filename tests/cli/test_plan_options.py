"""The clipping options of `userdp train` reach the plan, and nonsense is refused."""

import json

import pytest
from userdp.cli.plan_options import PlanOptions, build_plain_plan, build_plan

from tests.cli.test_train import MODEL, PLAN, prepared, store, train
from userdp.claims import claim
from userdp.clip import AdaptiveClipping, Clip, ClipForm, LayerSplit
from userdp.errors import UseError
from userdp.plans import Plan

__all__ = ["prepared", "store"]  # fixtures
NUMBERS = {
    "sampling": "users",
    "population": 100,
    "cohort_size": 10,
    "group_size": 4,
    "steps": 5,
    "l2_clip_norm": 0.5,
    "delta": 1e-5,
    "noise_multiplier": 2.0,
}


def plan_of(**options) -> Plan:
    return build_plan(PlanOptions(**NUMBERS, **options))


def test_each_option_sets_its_field_of_the_plan():
    plan = plan_of(
        clip_form=ClipForm.AUTOMATIC, clip_stability=0.1, layer_split=LayerSplit.DIMENSION
    )
    assert (plan.clip.form, plan.clip.stability) == (ClipForm.AUTOMATIC, 0.1)
    assert plan.clip.split is LayerSplit.DIMENSION
    plan = plan_of(clip_quantile=0.3, clip_learning_rate=0.1, count_noise_std=4.0)
    assert plan.clip.adaptation == AdaptiveClipping(
        quantile=0.3, learning_rate=0.1, count_noise_std=4.0
    )
    assert plan_of(clip_quantile=0.5).clip.adaptation == AdaptiveClipping()


def test_without_them_the_plan_is_the_old_one():
    assert plan_of().clip == Clip(l2_norm=0.5)


@pytest.mark.parametrize(
    "options",
    [
        {"clip_stability": 0.1},
        {"clip_learning_rate": 0.1},
        {"count_noise_std": 3.0},
        {"clip_quantile": 0.5, "count_noise_std": 1.0},
        {"clip_quantile": 0.0},
        {"clip_quantile": 0.5, "clip_form": ClipForm.AUTOMATIC},
        {"clip_quantile": 0.5, "clip_learning_rate": 0.0},
    ],
)
def test_options_that_say_nothing_or_the_impossible_are_refused(options):
    with pytest.raises(UseError):
        plan_of(**options)


@pytest.mark.parametrize("changes", [{"noise_multiplier": None}, {"epsilon": 3.0}])
def test_noise_and_a_budget_for_it_exclude_each_other(changes):
    with pytest.raises(UseError, match="exactly one"):
        build_plan(PlanOptions(**{**NUMBERS, **changes}))


@pytest.mark.parametrize("options", [{"clip_form": "normalized"}, {"clip_quantile": 0.5}])
def test_a_run_without_privacy_clips_by_no_plan(options):
    with pytest.raises(UseError, match="says nothing"):
        build_plain_plan(PlanOptions(steps=3, batch_size=8, **options))


@pytest.mark.slow
def test_a_run_from_the_command_line_is_claimed_at_its_noise_multiplier(store, tmp_path, capsys):
    options = [
        "--set",
        "adaptation.quantile=0.5",
        "--set",
        "clip.form=normalized",
        "--set",
        "learning.optimizer=adam-bc",
    ]
    assert train(store, tmp_path / "run", *PLAN, *MODEL, *options, "--json") == 0
    adaptive = json.loads(capsys.readouterr().out)
    assert train(store, tmp_path / "other", *PLAN, *MODEL, "--json") == 0
    first, second = json.loads(capsys.readouterr().out)["parts"]
    assert adaptive["epsilon"] == first["epsilon"] == second["epsilon"]
    assert claim(tmp_path / "run" / "ledger.jsonl").guarantee.epsilon == adaptive["epsilon"]
