"""The private loop, against invariants 1 to 7 and broken twins of itself."""

# ruff: noqa: PT012  (what raises is a whole run, broken off inside)
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from tests.plans import els_plan, uls_plan
from tests.training.toy import (
    attempts,
    cycles,
    gradient,
    lines,
    run_all,
    sgd,
    toy_model,
    toy_store,
    weights,
)
from userdp.core.errors import FailureError
from userdp.gradients import NoiseSource, get_engine
from userdp.ledger import RunLedger
from userdp.training import steps as steps_module
from userdp.training.config import UnsafeSeeds
from userdp.training.private import make_private

# Invariant 1: the claim is the run.


def other_sampling(run, **changes):
    run.mechanism.sampler.sampling = replace(run.mechanism.sampler.sampling, **changes)


@pytest.mark.parametrize(
    "tamper",
    [
        lambda run: setattr(run.mechanism, "noise_std", run.plan.noise_std / 2),
        lambda run: setattr(run.mechanism, "l2_clip_norm", run.plan.clip.l2_norm * 2),
        lambda run: other_sampling(run, sampling_probability=0.5),
        lambda run: other_sampling(run, group_size=1000),
    ],
    ids=["half the noise", "twice the clip", "other probability", "other group size"],
)
def test_invariant_1_a_tampered_step_stops_before_its_update(store, tmp_path, tamper):
    model = toy_model(store)
    before = weights(model)
    with (
        pytest.raises(FailureError, match="ledger and sampler disagree"),
        make_private(model, sgd(model), store, uls_plan(), out=tmp_path / "run") as private,
    ):
        tamper(private)
        next(iter(private))
    assert torch.equal(weights(model), before)
    assert all(p.grad is None for p in model.parameters())
    assert attempts(tmp_path / "run") == 0


def test_invariant_1_an_engine_of_greater_sensitivity_stops_the_run(store, tmp_path, monkeypatch):
    honest = get_engine("auto")

    def unclipped(*arguments, l2_clip_norm, **options):
        return honest(*arguments, l2_clip_norm=l2_clip_norm * 10, **options)

    monkeypatch.setattr(steps_module, "engine_of", lambda model, name: unclipped)
    model = toy_model(store)
    with (
        pytest.raises(FailureError, match="sensitivity"),
        make_private(model, sgd(model), store, uls_plan(), out=tmp_path / "run") as private,
    ):
        next(iter(private))
    assert all(p.grad is None for p in model.parameters())


# Invariant 2: an empty draw is a noise-only step that counts.


@pytest.mark.parametrize("make_plan", [uls_plan, els_plan])
@pytest.mark.pitfall(number=5)
def test_invariant_2_an_empty_cohort_is_a_noise_only_step_that_counts(store, tmp_path, make_plan):
    plan = make_plan(population=10**12, target_delta=1e-14)
    model = toy_model(store)
    seen = run_all(model, store, plan, tmp_path / "run", exact_log=True)
    assert [step.operator["units"] for step, _ in seen] == [0] * plan.steps
    assert attempts(tmp_path / "run") == plan.steps
    for _, grad in seen:
        noise = (grad * plan.denominator / plan.noise_std).numpy()
        assert stats.kstest(noise[:2000], "norm").pvalue > 1e-6
        assert noise.std() == pytest.approx(1, abs=0.1)


# Invariant 4: the denominator is a public constant.


def whole_population_gradients(tmp_path, texts, name):
    """The first gradient when everybody joins, under known noise."""
    store = toy_store(tmp_path / name, texts, held_out=0.0)
    plan = uls_plan(population=50, cohort_size=50, steps=1, group_size=100)
    model = toy_model(store)
    ((_, grad),) = run_all(
        model, store, plan, tmp_path / f"run-{name}", unsafe_seeds=UnsafeSeeds(draws=1, noise=2)
    )
    return plan, grad


def moved_by_one_user(tmp_path):
    """How far one user moves the released gradient, in units of l2_clip_norm / denominator."""
    texts = cycles(12)
    without = {user: held for user, held in texts.items() if user != b"user007"}
    plan, grad = whole_population_gradients(tmp_path, texts, "with")
    _, other = whole_population_gradients(tmp_path, without, "without")
    return float((grad - other).norm() * plan.denominator / plan.clip.l2_norm)


def test_invariant_4_one_user_moves_the_gradient_by_at_most_clip_over_denominator(tmp_path):
    moved = moved_by_one_user(tmp_path)
    assert 0.1 < moved <= 1 + 1e-4


@pytest.mark.pitfall(number=4)
def test_invariant_4_twin_dividing_by_the_realised_cohort_is_caught(tmp_path, monkeypatch):
    honest = steps_module.set_gradients
    realised = {"units": 0}
    original_sum = get_engine("auto")

    def counting(*arguments, **options):
        summed = original_sum(*arguments, **options)
        realised["units"] = len(summed.norms)
        return summed

    monkeypatch.setattr(steps_module, "engine_of", lambda model, name: counting)
    monkeypatch.setattr(
        steps_module,
        "set_gradients",
        lambda model, value, denominator: honest(model, value, denominator=realised["units"]),
    )
    assert moved_by_one_user(tmp_path) > 2


# Invariant 5: noise once per logical step.


def noise_of_a_step(tmp_path, store, name, micro_batch):
    plan = uls_plan(population=40, cohort_size=20, steps=1, group_size=9)
    model = toy_model(store)
    ((step, grad),) = run_all(
        model,
        store,
        plan,
        tmp_path / name,
        micro_batch=micro_batch,
        exact_log=True,
        unsafe_seeds=UnsafeSeeds(draws=5, noise=6),
    )
    assert step.operator["units"] > 5
    return plan, grad


def noise_scale(tmp_path, store, micro_batch):
    """Whether the noise has the plan's variance, by a chi-square test where nobody is drawn."""
    plan = uls_plan(population=10**12, target_delta=1e-14)
    how = {"micro_batch": micro_batch}
    noisy = run_all(toy_model(store), store, plan, tmp_path / "empty", **how)[0][1]
    scaled = (noisy * plan.denominator / plan.noise_std).numpy()
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], scaled.size) / scaled.size
    return low < np.square(scaled).mean() < high


def test_invariant_5_noise_has_the_plans_variance(store, tmp_path):
    assert noise_scale(tmp_path, store, 1)


def test_invariant_5_twin_noise_twice_per_step_is_caught(store, tmp_path, monkeypatch):
    once = NoiseSource.add_

    def twice(self, value, noise_std):
        once(self, value, noise_std)
        once(self, value, noise_std)

    monkeypatch.setattr(NoiseSource, "add_", twice)
    assert not noise_scale(tmp_path, store, 1)


# Invariant 7: written before released.


def charged_before_each_update(store, tmp_path):
    """Whether the ledger on the disk holds step t whenever update t is applied."""
    model = toy_model(store)
    optimizer = sgd(model)
    in_time = []
    with make_private(model, optimizer, store, uls_plan(), out=tmp_path / "run") as private:
        for step in private:
            in_time.append(attempts(tmp_path / "run") >= step.number)
            optimizer.step()
    return all(in_time)


def test_invariant_7_each_step_is_on_the_disk_before_its_gradient_is_handed_out(store, tmp_path):
    assert charged_before_each_update(store, tmp_path)


def test_invariant_7_twin_a_ledger_written_after_the_update_is_caught(store, tmp_path, monkeypatch):
    honest = RunLedger.attempt
    pending = []

    def late(self, step):
        if pending:
            honest(self, pending.pop())
        pending.append(step)
        return self.attempts + 1

    monkeypatch.setattr(RunLedger, "attempt", late)
    monkeypatch.setattr(RunLedger, "remaining", property(lambda self: 4 - self.attempts))
    assert not charged_before_each_update(store, tmp_path)


@pytest.mark.pitfall(number=25)
def test_invariant_7_a_step_that_fails_stays_charged_and_is_not_redone(
    store, tmp_path, monkeypatch
):
    model = toy_model(store)
    plan = uls_plan()

    def out_of_memory(*arguments, **options):
        raise MemoryError

    with (
        pytest.raises(MemoryError),
        make_private(model, sgd(model), store, plan, out=tmp_path / "run") as private,
        monkeypatch.context() as patch,
    ):
        patch.setattr(private.mechanism, "engine", out_of_memory)
        next(iter(private))
    assert attempts(tmp_path / "run") == 1
    seen = run_all(model, store, plan, tmp_path / "run", resume=True)
    assert [step.number for step, _ in seen] == [2, 3, 4, 5]
    assert attempts(tmp_path / "run") == plan.steps


@pytest.mark.pitfall(number=8)
def test_invariant_7_a_resumed_run_draws_other_noise(store, tmp_path):
    plan = uls_plan(population=10**12, target_delta=1e-14)
    model = toy_model(store)
    optimizer = sgd(model)
    firsts = []
    for resume in (False, True, True):
        with make_private(
            model, optimizer, store, plan, out=tmp_path / "run", resume=resume
        ) as private:
            next(iter(private))
            firsts.append(gradient(model))
    assert not torch.equal(firsts[0], firsts[1])
    assert not torch.equal(firsts[1], firsts[2])
    assert attempts(tmp_path / "run") == 3


CHANCE = {"population": 40, "cohort_size": 20, "steps": 4}
"""Half of some forty users: that two cohorts are equal has a probability of about 2^-32."""


def drawn_of_steps(run, monkeypatch):
    """The users of the cohort that each step uses from now on."""
    seen, cut = [], run.mechanism.collator.microbatches

    def watched(cohort, **options):
        seen.append(tuple(sorted(set(cohort.users.tolist()))))
        return cut(cohort, **options)

    monkeypatch.setattr(run.mechanism.collator, "microbatches", watched)
    return seen


def test_invariant_7_the_step_after_one_that_failed_draws_a_cohort_of_its_own(
    store, tmp_path, monkeypatch
):
    """Within one process too, where a loop catches the error and goes on."""
    model = toy_model(store)
    optimizer = sgd(model)

    def out_of_memory(*arguments, **options):
        raise MemoryError

    plan = uls_plan(**CHANCE)
    with make_private(model, optimizer, store, plan, out=tmp_path / "run") as private:
        seen = drawn_of_steps(private, monkeypatch)
        with monkeypatch.context() as patch:
            patch.setattr(private.mechanism, "engine", out_of_memory)
            with pytest.raises(MemoryError):
                next(iter(private))
        for _ in private:
            optimizer.step()
    assert len(seen) == plan.steps
    assert len(set(seen)) == plan.steps


# The store's reservation.


@pytest.mark.pitfall(number=3)
def test_invariant_5_the_same_step_whatever_the_micro_batch(store, tmp_path):
    _, one = noise_of_a_step(tmp_path, store, "one", 1)
    _, many = noise_of_a_step(tmp_path, store, "many", 32)
    assert torch.allclose(one, many, atol=1e-6)


def test_invariant_7_two_runs_of_one_plan_draw_other_cohorts(store, tmp_path):
    """What decides the draws is neither in the plan nor in anything else that is published."""
    seen = []
    for name in ("one", "other"):
        model = toy_model(store)
        plan = uls_plan(**CHANCE)
        with make_private(model, sgd(model), store, plan, out=tmp_path / name) as private:
            seen.append([tuple(private.mechanism.sampler.draw().users.tolist()) for _ in range(3)])
    assert seen[0] != seen[1]


@pytest.mark.slow
@pytest.mark.pitfall(number=25)
def test_invariant_7_repetition_exists_only_under_unsafe_seeds(store, tmp_path):
    def final(name, **seeds):
        model = toy_model(store)
        run_all(model, store, uls_plan(), tmp_path / name, **seeds)
        return weights(model)

    seeds = {"unsafe_seeds": UnsafeSeeds(draws=3, noise=4)}
    assert torch.equal(final("a", **seeds), final("b", **seeds))
    assert not torch.equal(final("c"), final("d"))
    assert lines(tmp_path / "a" / "ledger.jsonl")[0]["facts"]["unsafe_seeds"] is True
    assert "unsafe_seeds" not in lines(tmp_path / "c" / "ledger.jsonl")[0]["facts"]
