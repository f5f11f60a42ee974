"""Clipping options in a private run: what ran is what the plan says, and what the ledger holds."""
# ruff: noqa: PT012  (what raises is a whole run, broken off inside)

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tests.plans import changed_plan, uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import attempts, cycles, lines, run_all, sgd, toy_model, toy_store
from userdp.claims import claim
from userdp.core.clip import FARTHEST, AdaptiveClipping, ClipForm, LayerSplit
from userdp.core.errors import FailureError, UseError
from userdp.gradients.noise import centred_count
from userdp.ledger.journal import append
from userdp.ledger.lines import RUN, Attempt
from userdp.plans import StepRecord
from userdp.training import steps as steps_module
from userdp.training.config import UnsafeSeeds
from userdp.training.private import make_private


def adaptive(plan, **changes):
    return changed_plan(plan, adaptive=AdaptiveClipping(**{"count_noise_std": 2.0, **changes}))


def steps_of(run):
    return [line["step"] for line in lines(run / "ledger.jsonl") if line["kind"] == "attempt"]


@pytest.mark.parametrize(
    "tamper",
    fast_then_slow(
        [
            lambda run: setattr(
                run.mechanism, "noise_std", run.plan.noise.multiplier * run.mechanism.l2_clip_norm
            ),
            lambda run: setattr(run.mechanism, "count_noise_std", 1.0),
            lambda run: setattr(run.mechanism, "l2_clip_norm", run.mechanism.l2_clip_norm * 2),
            lambda run: setattr(
                run.mechanism, "l2_clip_norm", run.plan.clip.l2_norm * FARTHEST * 2
            ),
        ],
        fast=2,
    ),
    ids=["count noise forgotten", "less count noise", "clip without noise", "no bound"],
)
def test_invariant_1_a_tampered_noise_ratio_stops_the_run_before_its_update(
    store, tmp_path, tamper
):
    model, plan = toy_model(store), adaptive(uls_plan())
    optimizer = sgd(model)
    with (
        pytest.raises(FailureError, match="ledger and sampler disagree"),
        make_private(model, optimizer, store, plan, out=tmp_path / "run") as private,
    ):
        for step in private:
            optimizer.step()
            if step.number == 2:
                tamper(private)
    assert attempts(tmp_path / "run") == 2


@pytest.mark.parametrize("field", ["noise_std", "count_noise_std"])
def test_invariant_1_twin_a_ledger_of_another_noise_ratio_is_refused_by_the_claim(
    store, tmp_path, field
):
    plan, path = adaptive(uls_plan()), tmp_path / "run" / "ledger.jsonl"
    model = toy_model(store)
    with make_private(model, sgd(model), store, plan, out=tmp_path / "run") as private:
        next(iter(private))
    kept = claim(path)
    step = StepRecord.of_plan(plan, l2_clip_norm=0.3)
    step = replace(step, **{field: 0.9 * getattr(step, field)})
    append(path, RUN, lambda _: [Attempt(attempt=2, step=step)])
    assert kept.guarantee == plan.guarantee()
    assert kept.so_far == plan.guarantee(1)
    with pytest.raises(UseError, match="no epsilon can be claimed"):
        claim(path)


# The clip norm follows the noisy fraction, never the exact one.


def moves_of_the_clip_norm(store, out):
    """What noise on the count of nobody did to the clip norm, in its own deviations."""
    plan = adaptive(
        uls_plan(population=10**12, target_delta=1e-14, cohort_size=50, steps=60), learning_rate=1.0
    )
    run_all(toy_model(store), store, plan, out)
    clips = np.array([step["l2_clip_norm"] for step in steps_of(out)])
    return -np.diff(np.log(clips)) * plan.denominator / plan.count_noise_std


@pytest.mark.slow
def test_invariant_5_twin_a_clip_norm_updated_from_the_exact_fraction_is_caught(
    store, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        steps_module,
        "noisy_count",
        lambda norms, *, l2_clip_norm, count_noise_std, noise: centred_count(
            norms, l2_clip_norm=l2_clip_norm
        ),
    )
    assert stats.kstest(moves_of_the_clip_norm(store, tmp_path / "run"), "norm").pvalue < 1e-9


def test_invariant_4_the_count_is_divided_by_the_plans_denominator(store, tmp_path, monkeypatch):
    """Half of the declared population is there: a division by those drawn would give 1, not 3/4."""
    monkeypatch.setattr(
        steps_module, "noisy_count", lambda norms, **_: centred_count(norms, l2_clip_norm=1e9)
    )
    users = len(store.split("train").counts)
    plan = adaptive(uls_plan(population=2 * users, cohort_size=2 * users, steps=2))
    run_all(toy_model(store), store, plan, tmp_path / "run")
    first, second = (step["l2_clip_norm"] for step in steps_of(tmp_path / "run"))
    assert math.log(first / second) == pytest.approx(0.2 * (0.75 - 0.5))


@pytest.mark.slow
def test_invariant_7_a_resumed_run_goes_on_at_the_clip_norm_of_its_ledger(store, tmp_path):
    plan = adaptive(uls_plan())
    model = toy_model(store)
    optimizer = sgd(model)
    with make_private(model, optimizer, store, plan, out=tmp_path / "run") as private:
        for step in private:
            optimizer.step()
            if step.number == 3:
                break
    run_all(model, store, plan, tmp_path / "run", resume=True)
    steps = steps_of(tmp_path / "run")
    assert len(steps) == 5
    assert steps[3]["l2_clip_norm"] == steps[2]["l2_clip_norm"] != plan.clip.l2_norm
    assert claim(tmp_path / "run" / "ledger.jsonl").guarantee == plan.guarantee()


# Forms and splits.


def seeded_gradient(store, out, plan):
    ((_, grad),) = run_all(
        toy_model(store), store, plan, out, unsafe_seeds=UnsafeSeeds(draws=1, noise=2)
    )
    return grad


RULES = [
    {"clip_form": ClipForm.NORMALIZED},
    {"clip_form": ClipForm.AUTOMATIC},
    {"layer_split": LayerSplit.UNIFORM},
    {"layer_split": LayerSplit.DIMENSION, "clip_form": ClipForm.AUTOMATIC},
]


@pytest.mark.parametrize(
    "rule", fast_then_slow(RULES), ids=lambda rule: " ".join(map(str, rule.values()))
)
def test_invariant_3_one_user_moves_the_gradient_by_at_most_the_clip_norm_under_every_rule(
    tmp_path, rule
):
    texts = cycles(12)
    fewer = {user: held for user, held in texts.items() if user != b"user007"}
    plan = uls_plan(population=50, cohort_size=50, steps=1, group_size=100, l2_clip_norm=0.25)
    plan = changed_plan(plan, **rule)
    grads = [
        seeded_gradient(
            toy_store(tmp_path / name, held, held_out=0.0), tmp_path / f"run-{name}", plan
        )
        for name, held in (("with", texts), ("without", fewer))
    ]
    scale = plan.clip.l2_norm if plan.clip.form is ClipForm.THRESHOLD else 1.0
    moved = float((grads[0] - grads[1]).norm()) * plan.denominator / scale
    assert 0.1 < moved <= 1 + 1e-4


@pytest.mark.slow
def test_invariant_5_the_clip_norm_moves_by_gaussian_noise_where_nobody_is_drawn(store, tmp_path):
    assert stats.kstest(moves_of_the_clip_norm(store, tmp_path / "run"), "norm").pvalue > 1e-9
