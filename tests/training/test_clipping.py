"""A clip norm that adapts: it follows the noisy fraction, and the ledger holds each step's."""

import math

import numpy as np
import pytest
from scipy import stats

from tests.plans import changed_plan, uls_plan
from tests.training.toy import lines, take
from userdp.claims import claim
from userdp.gradients.noise import centred_count
from userdp.noise.clip_forms import AdaptiveClipping
from userdp.training import step_mechanism as steps_module


def adaptive(**changes):
    rate = changes.pop("learning_rate", 0.2)
    clipping = AdaptiveClipping(count_noise_std=2.0, learning_rate=rate)
    return changed_plan(uls_plan(**changes), adaptive=clipping)


def clip_norms(run):
    entries = lines(run / "ledger.jsonl")
    return [line["step"]["l2_clip_norm"] for line in entries if line["kind"] == "attempt"]


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
def test_invariant_5_the_clip_norm_moves_by_gaussian_noise_where_nobody_is_drawn(
    begin, tmp_path, monkeypatch, broken
):
    """The twin adapts by the exact fraction of those who were clipped."""
    if broken:
        monkeypatch.setattr(
            steps_module,
            "noisy_count",
            lambda norms, *, l2_clip_norm, **_: centred_count(norms, l2_clip_norm=l2_clip_norm),
        )
    nobody = {"population": 10**12, "target_delta": 1e-14, "cohort_size": 50, "steps": 60}
    plan = adaptive(**nobody, learning_rate=1.0)
    with begin(plan) as private:
        take(private)
    moves = -np.diff(np.log(clip_norms(tmp_path / "run")))
    chance = stats.kstest(moves * plan.denominator / plan.count_noise_std, "norm").pvalue
    assert (chance < 1e-9) == broken


def test_invariant_4_the_count_is_divided_by_the_plans_denominator(
    store, begin, tmp_path, monkeypatch
):
    """Half of the declared population is there: a division by those drawn would give 1, not 3/4."""
    monkeypatch.setattr(
        steps_module, "noisy_count", lambda norms, **_: centred_count(norms, l2_clip_norm=1e9)
    )
    declared = 2 * len(store.split("train").counts)
    with begin(adaptive(population=declared, cohort_size=declared, steps=2)) as private:
        take(private)
    first, second = clip_norms(tmp_path / "run")
    assert math.log(first / second) == pytest.approx(0.2 * (0.75 - 0.5))


@pytest.mark.slow
def test_invariant_7_a_resumed_run_goes_on_at_the_clip_norm_of_its_ledger(begin, tmp_path):
    plan = adaptive()
    with begin(plan) as private:
        take(private, 3)
    with begin(plan, model=private._of.model, resume=True) as private:
        take(private)
    norms = clip_norms(tmp_path / "run")
    assert len(norms) == 5
    assert norms[3] == norms[2] != plan.clip.l2_norm
    assert claim(tmp_path / "run" / "ledger.jsonl").guarantee == plan.guarantee()
