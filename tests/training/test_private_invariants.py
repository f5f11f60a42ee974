"""The private loop, against invariants 1 to 7 and broken twins of itself."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from tests.plans import changed_plan, els_plan, uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import (  # fmt: skip
    attempts,
    cycles,
    gradient,
    run_all,
    take,
    toy_model,
    toy_store,
    weights,
)
from userdp.core.errors import FailureError
from userdp.gradients import NoiseSource, get_engine
from userdp.ledger import RunLedger
from userdp.noise.clip_forms import FARTHEST, AdaptiveClipping, ClipForm, LayerSplit
from userdp.training import step_mechanism as steps_module
from userdp.training.config import UnsafeSeeds
from userdp.training.step_mechanism import StepMechanism

PLAN = uls_plan()
ADAPTIVE = changed_plan(PLAN, adaptive=AdaptiveClipping(count_noise_std=2.0))
NOBODY = uls_plan(population=10**12, target_delta=1e-14)
"""So large a population is declared that no user is drawn: what is released is noise."""


def out_of_memory(*arguments, **options):
    raise MemoryError


# Invariant 1: the claim is the run.


def other_sampling(it, **changes):
    it.sampler.sampling = replace(it.sampler.sampling, **changes)


TAMPERED = {
    "half the noise": (PLAN, lambda it: setattr(it, "noise_std", it.noise_std / 2)),
    "twice the clip": (PLAN, lambda it: setattr(it, "l2_clip_norm", it.l2_clip_norm * 2)),
    "other probability": (PLAN, lambda it: other_sampling(it, sampling_probability=0.5)),
    "clip without noise": (ADAPTIVE, lambda it: setattr(it, "l2_clip_norm", it.l2_clip_norm * 2)),
    "count noise forgotten": (
        ADAPTIVE,
        lambda it: setattr(it, "noise_std", it.plan.noise.multiplier * it.l2_clip_norm),
    ),
    "no bound": (ADAPTIVE, lambda it: it.clip_at(it.plan.clip.l2_norm * FARTHEST * 2)),
}


@pytest.mark.parametrize("how", fast_then_slow(TAMPERED, fast=3))
def test_invariant_1_a_tampered_step_stops_before_its_update(begin, tmp_path, how):
    plan, tamper = TAMPERED[how]
    with begin(plan) as private:
        take(private, 2)
        before = weights(private._of.model)
        tamper(private.mechanism)
        with pytest.raises(FailureError, match="ledger and sampler disagree"):
            take(private)
    assert torch.equal(weights(private._of.model), before)
    assert attempts(tmp_path / "run") == 2


def test_invariant_1_an_engine_of_greater_sensitivity_stops_the_run(begin, monkeypatch):
    honest = get_engine("auto")

    def unclipped(*arguments, l2_clip_norm, **options):
        return honest(*arguments, l2_clip_norm=l2_clip_norm * 10, **options)

    monkeypatch.setattr(steps_module, "get_engine", lambda name: unclipped)
    with begin() as private, pytest.raises(FailureError, match="sensitivity"):
        take(private)
    assert all(p.grad is None for p in private._of.model.parameters())


# Invariant 2: an empty draw is a noise-only step that counts. Invariant 5: noise once per step.


def is_the_plans_noise(grad, plan):
    """A chi-square test of a gradient that nobody has a part in."""
    scaled = (grad * plan.denominator / plan.noise_std).numpy()
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], scaled.size) / scaled.size
    return low < np.square(scaled).mean() < high and stats.kstest(scaled, "norm").pvalue > 1e-6


@pytest.mark.parametrize("make_plan", [uls_plan, els_plan])
@pytest.mark.pitfall(number=5)
def test_invariant_2_an_empty_cohort_is_a_noise_only_step_that_counts(begin, tmp_path, make_plan):
    """Invariant 5 too: its noise has the plan's variance."""
    plan = make_plan(population=10**12, target_delta=1e-14)
    with begin(plan, exact_log=True) as private:
        seen = take(private)
    assert [step.operator["units"] for step, _ in seen] == [0] * plan.steps
    assert attempts(tmp_path / "run") == plan.steps
    assert all(is_the_plans_noise(grad, plan) for _, grad in seen)


def test_invariant_5_twin_noise_twice_per_step_is_caught(begin, monkeypatch):
    once = NoiseSource.add_

    def twice(self, value, noise_std):
        once(self, value, noise_std)
        once(self, value, noise_std)

    monkeypatch.setattr(NoiseSource, "add_", twice)
    with begin(NOBODY) as private:
        assert not any(is_the_plans_noise(grad, NOBODY) for _, grad in take(private))


@pytest.mark.pitfall(number=3)
def test_invariant_5_the_same_step_whatever_the_micro_batch(begin):
    plan = uls_plan(population=40, cohort_size=20, steps=1, group_size=9)
    how, found = {"exact_log": True, "unsafe_seeds": UnsafeSeeds(draws=5, noise=6)}, []
    for rows in (1, 32):
        with begin(plan, name=f"of {rows}", micro_batch=rows, **how) as private:
            ((step, grad),) = take(private)
        assert step.operator["units"] > 5
        found.append(grad)
    assert torch.allclose(*found, atol=1e-6)


# Invariants 3 and 4: the sensitivity, and a denominator that is a public constant.

RULES = [
    {},
    {"clip_form": ClipForm.NORMALIZED},
    {"clip_form": ClipForm.AUTOMATIC},
    {"layer_split": LayerSplit.UNIFORM},
    {"layer_split": LayerSplit.DIMENSION, "clip_form": ClipForm.AUTOMATIC},
]


def moved_by_one_user(tmp_path, **rule):
    """How far one user moves the gradient if everybody joins, in units of what the plan allows."""
    everybody, grads = cycles(12), []
    without = {user: texts for user, texts in everybody.items() if user != b"user007"}
    plan = uls_plan(population=50, cohort_size=50, steps=1, group_size=100, l2_clip_norm=0.25)
    plan, seeds = changed_plan(plan, **rule), UnsafeSeeds(draws=1, noise=2)
    for name, texts in (("with", everybody), ("without", without)):
        store, out = toy_store(tmp_path / name, texts, held_out=0.0), tmp_path / f"run {name}"
        grads.append(run_all(toy_model(store), store, plan, out, unsafe_seeds=seeds)[0][1])
    most = plan.clip.l2_norm if plan.clip.form is ClipForm.THRESHOLD else 1.0
    return float((grads[0] - grads[1]).norm()) * plan.denominator / most


@pytest.mark.parametrize(
    "rule", fast_then_slow(RULES, fast=2), ids=lambda rule: " ".join(rule.values()) or "as it is"
)
def test_invariant_4_one_user_moves_the_gradient_by_at_most_clip_over_denominator(tmp_path, rule):
    """And with it invariant 3, under every rule of clipping."""
    assert 0.1 < moved_by_one_user(tmp_path, **rule) <= 1 + 1e-4


@pytest.mark.pitfall(number=4)
def test_invariant_4_twin_dividing_by_the_realised_cohort_is_caught(tmp_path, monkeypatch):
    honest, take_step = steps_module.set_gradients, StepMechanism.take
    drawn = []

    def counted(self, number):
        drawn.append(len(self.collator.counts))  # everybody
        return take_step(self, number)

    def by_drawn(model, value, denominator):
        honest(model, value, denominator=drawn[-1])

    monkeypatch.setattr(StepMechanism, "take", counted)
    monkeypatch.setattr(steps_module, "set_gradients", by_drawn)
    assert moved_by_one_user(tmp_path) > 2


# Invariant 7: written before released.


def charged_before_each_update(private, run):
    """Whether the ledger on the disk holds step t whenever update t is applied."""
    in_time = []
    with private:
        for step in private:
            in_time.append(attempts(run) >= step.number)
            private._of.optimizer.step()
    return all(in_time)


def test_invariant_7_each_step_is_on_the_disk_before_its_gradient_is_handed_out(begin, tmp_path):
    assert charged_before_each_update(begin(), tmp_path / "run")


def test_invariant_7_twin_a_ledger_written_after_the_update_is_caught(begin, tmp_path, monkeypatch):
    honest, pending = RunLedger.attempt, []

    def late(self, step):
        if pending:
            honest(self, pending.pop())
        pending.append(step)
        return self.attempts + 1

    monkeypatch.setattr(RunLedger, "attempt", late)
    monkeypatch.setattr(RunLedger, "remaining", property(lambda self: 4 - self.attempts))
    assert not charged_before_each_update(begin(), tmp_path / "run")


@pytest.mark.pitfall(number=25)
def test_invariant_7_a_step_that_fails_stays_charged_and_is_not_redone(begin, tmp_path):
    with begin() as private:
        private.mechanism.engine = out_of_memory
        with pytest.raises(MemoryError):
            take(private)
    assert attempts(tmp_path / "run") == 1
    with begin(resume=True) as private:
        assert [step.number for step, _ in take(private)] == [2, 3, 4, 5]
    assert attempts(tmp_path / "run") == PLAN.steps


@pytest.mark.pitfall(number=8)
def test_invariant_7_a_resumed_run_draws_other_noise(begin, tmp_path):
    found = []
    for resume in (False, True, True):
        with begin(NOBODY, resume=resume) as private:
            next(iter(private))
        found.append(tuple(gradient(private._of.model).tolist()))
    assert len(set(found)) == 3
    assert attempts(tmp_path / "run") == 3


CHANCE = uls_plan(population=40, cohort_size=20, steps=4)
"""Half of some forty users: that two cohorts are equal has a probability of about 2^-32."""


def test_invariant_7_the_step_after_one_that_failed_draws_a_cohort_of_its_own(begin, monkeypatch):
    """Within one process too, where a loop catches the error and goes on."""
    seen = []
    with begin(CHANCE) as private:
        collate = private.mechanism.collator

        def watched(cohort):
            seen.append(tuple(sorted(set(cohort.users.tolist()))))
            return collate(cohort)

        private.mechanism.collator = watched
        with monkeypatch.context() as patch:
            patch.setattr(private.mechanism, "engine", out_of_memory)
            with pytest.raises(MemoryError):
                take(private)
        take(private)
    assert len(seen) == len(set(seen)) == CHANCE.steps


def test_invariant_7_two_runs_of_one_plan_draw_other_cohorts(begin):
    """What decides the draws is neither in the plan nor in anything else that is published."""
    seen = []
    for name in ("one", "other"):
        with begin(CHANCE, name=name) as private:
            seen.append([tuple(private.mechanism.sampler.draw().users.tolist()) for _ in range(3)])
    assert seen[0] != seen[1]
