# ruff: noqa: PT012  (what raises is a whole run, broken off inside)
"""Noise that remembers: its state is on the disk before a step is released, and is a secret."""

from __future__ import annotations

import math
import shutil
import stat
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.noise_with_memory import AutoRegressive, AutoRegressiveSource
from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import private_run, sgd, toy_model
from userdp.clip import AdaptiveClipping, Clip
from userdp.codec import decode, encode
from userdp.errors import FailureError, UseError
from userdp.ledger import RunFolder, StoreLedger
from userdp.ledger.ending import end_early
from userdp.noise import Gaussian
from userdp.plans import Plan
from userdp.sampling import ShuffleUsers
from userdp.training import steps as steps_module
from userdp.training.config import UnsafeSeeds
from userdp.training.distributed_run import source_for

LAW = AutoRegressive(multiplier=1.0)
STEPS = 6


def plan() -> Plan:
    """An uncovered sampling, of which nothing is claimed; noise without a price fits no other."""
    base = uls_plan(steps=STEPS)
    sampling = ShuffleUsers(
        sampling_probability=base.sampling.sampling_probability,
        group_size=base.sampling.group_size,
    )
    return replace(base, sampling=sampling, noise=LAW)


class Stopped(BaseException):
    """Ends a run in its middle."""


def noise_of_steps(store, out, *, until=STEPS, resume=False, seed=7):
    """The noise that each step was released with, of a run that stops before step ``until + 1``."""
    model = toy_model(store)
    options = {"unsafe_seeds": UnsafeSeeds(noise=seed), "allow_large_delta": True}
    seen = []
    with private_run(model, sgd(model), store, plan(), out=out, resume=resume, **options) as run:
        while run.done < until:
            next(iter(run))
            last = run.mechanism.noise.last
            seen.append(torch.cat([v.flatten() for v in last.values()]).clone())
    return seen


@pytest.mark.pitfall(number=45)
def test_several_processes_draw_no_noise_with_memory():
    several = SimpleNamespace(size=2)
    with pytest.raises(UseError, match="is drawn by one process"):
        source_for(several, torch.nn.Linear(2, 2), LAW)


def test_noise_without_a_price_is_refused_and_claims_nothing():
    with pytest.raises(UseError, match="no price"):
        replace(uls_plan(), noise=LAW)
    assert plan().guarantee().epsilon == math.inf


def test_a_clip_norm_that_adapts_has_no_price_beside_noise_with_memory(monkeypatch):
    monkeypatch.setattr(AutoRegressive, "independent_multiplier", 1.0)
    adapting = Clip(l2_norm=1.0, adaptation=AdaptiveClipping())
    assert replace(uls_plan(), noise=LAW).mechanism == uls_plan(noise_multiplier=1.0).mechanism
    with pytest.raises(UseError, match="no price"):
        replace(uls_plan(), noise=LAW, clip=adapting)


def test_a_plan_with_another_noise_is_written_and_read():
    assert decode(Plan, encode(plan()), what="the plan") == plan()
    assert encode(Gaussian(multiplier=2.0)) == {"kind": "gaussian", "multiplier": 2.0}


@pytest.mark.parametrize("stops", fast_then_slow(map(pytest.param, [(1,), (3,), (2, 5)])))
def test_invariant_5_a_resumed_run_has_the_noise_of_one_that_was_not_interrupted(
    store, tmp_path, stops
):
    straight = noise_of_steps(store, tmp_path / "straight")
    resumed = noise_of_steps(store, tmp_path / "run", until=stops[0])
    for until in (*stops[1:], STEPS):
        resumed += noise_of_steps(store, tmp_path / "run", until=until, resume=True)
    assert len(resumed) == len(straight) == STEPS
    assert all(torch.equal(a, b) for a, b in zip(resumed, straight, strict=True))


@pytest.mark.slow
def test_the_state_is_the_operators_alone_and_goes_with_the_end_of_the_run(store, tmp_path):
    noise_of_steps(store, tmp_path / "run", until=3)
    state = tmp_path / "run" / "checkpoints" / "noise.safetensors"
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.parent.stat().st_mode) == 0o700
    noise_of_steps(store, tmp_path / "run", resume=True)
    assert not state.exists()


@pytest.mark.parametrize("told", fast_then_slow([True, False]))
def test_what_a_kill_left_of_the_state_goes_when_the_run_is_looked_at_again(
    store, tmp_path, monkeypatch, told
):
    """Killed when the run's ledger had its last line, and before or after its store had."""
    state = tmp_path / "run" / "checkpoints" / "noise.safetensors"

    def killed(*arguments, **options):
        raise Stopped

    with monkeypatch.context() as broken, pytest.raises(Stopped):
        if told:
            broken.setattr(RunFolder, "forget_noise", killed)
        else:
            broken.setattr(StoreLedger, "settle", killed)
        noise_of_steps(store, tmp_path / "run")
    assert state.exists()
    with pytest.raises(UseError, match="finished"):
        noise_of_steps(store, tmp_path / "run", resume=True)
    assert not state.exists()


def test_the_state_goes_with_a_run_that_is_settled_before_its_end(store, tmp_path):
    noise_of_steps(store, tmp_path / "run", until=2, seed=None)
    state = tmp_path / "run" / "checkpoints" / "noise.safetensors"
    assert state.exists()
    end_early(RunFolder(tmp_path / "run"))
    assert not state.exists()


@pytest.mark.parametrize("where", fast_then_slow(["gathered", "set_gradients"]))
def test_invariant_5_a_step_that_ended_early_repeats_no_noise(store, tmp_path, monkeypatch, where):
    """Charged and ended: before its noise was drawn, or after that was written down."""

    def stop(*arguments, **options):
        raise Stopped

    out = tmp_path / "run"
    before = noise_of_steps(store, out, until=2)
    for _ in range(2):  # and once more
        with monkeypatch.context() as broken, pytest.raises(Stopped):
            broken.setattr(steps_module, where, stop)
            noise_of_steps(store, out, resume=True)
    after = noise_of_steps(store, out, resume=True)
    assert len(before) + 2 + len(after) == STEPS
    unseen = 2 if where == "set_gradients" else 0
    straight = noise_of_steps(store, tmp_path / "straight")
    expected = straight[2 + unseen : 2 + unseen + len(after)]
    assert all(torch.equal(a, b) for a, b in zip(after, expected, strict=True))


def test_invariant_5_a_state_that_was_put_back_is_refused(store, tmp_path):
    out = tmp_path / "run"
    state = out / "checkpoints" / "noise.safetensors"
    noise_of_steps(store, out, until=2)
    shutil.copy(state, tmp_path / "old")
    noise_of_steps(store, out, until=4, resume=True)
    shutil.copy(tmp_path / "old", state)
    with pytest.raises(FailureError, match="again"):
        noise_of_steps(store, out, resume=True)
    state.unlink()
    with pytest.raises(FailureError, match="again"):
        noise_of_steps(store, out, resume=True)
    state.write_bytes(b"nothing")
    with pytest.raises(FailureError, match="cannot be read"):
        noise_of_steps(store, out, resume=True)


def correlations(*, restored: bool) -> tuple[float, float]:
    """Of the last two steps' noise, by a source that is made anew for each step; and its variance.

    The variance is over (1 - a^2t) / (1 - a^2), that of e_t with e_0 = 0.
    """
    source, noise = AutoRegressiveSource(LAW, None), []
    for _ in range(4):
        state = source.state()
        source = AutoRegressiveSource(LAW, None)
        if restored:
            source.restore(state)
        value = {"w": torch.zeros(40_000, dtype=torch.float64)}
        source.add_(value, 1.0)
        noise.append(value["w"])
    a = LAW.coefficient
    variance = float(noise[-1].square().mean()) * (1 - a**2) / (1 - a**8)
    return float(torch.corrcoef(torch.stack(noise[-2:]))[0, 1]), variance


def test_invariant_5_restored_noise_has_the_laws_covariance():
    a = LAW.coefficient
    expected = a * math.sqrt((1 - a**6) / (1 - a**8))
    correlation, variance = correlations(restored=True)
    assert correlation == pytest.approx(expected, abs=0.02)
    assert variance == pytest.approx(1, abs=0.04)


def test_invariant_5_twin_noise_that_forgets_is_caught():
    correlation, variance = correlations(restored=False)
    assert abs(correlation) < 0.02
    assert variance < 0.6


def test_invariant_5_twin_noise_from_an_old_state_is_caught(store, tmp_path, monkeypatch):
    """Without the check of its step, a state that was put back repeats what was released."""
    monkeypatch.setattr(steps_module, "read_noise", lambda folder, least_step: {})
    out = tmp_path / "run"
    before = noise_of_steps(store, out, until=2)
    after = noise_of_steps(store, out, resume=True)
    assert torch.equal(before[0], after[0])
