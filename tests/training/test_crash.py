"""Invariant 7 where a run ends early: kills, Ctrl-C, a lost store's line, checkpoints of others."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import userdp
from tests.ledgers import unwritten
from tests.plans import uls_plan
from tests.training.processes import start
from tests.training.toy import CONFIG, RESUMED, attempts, lines, sgd, take, weights
from userdp.claims import claim
from userdp.claims.weights import digest_of
from userdp.core.errors import FailureError, Interrupted, UseError
from userdp.core.interrupts import are_held
from userdp.core.stages import Progress
from userdp.ledger import RunFolder, StoreLedger, permitted_lines
from userdp.ledger.lines import Settle
from userdp.ledger.run_ledger import RunRecord, is_finished
from userdp.training import loop
from userdp.training.checkpoints import Checkpoints
from userdp.training.loop import train
from userdp.training.optimizers import WeightAverage

PLAN, EACH_STEP = uls_plan(), replace(CONFIG, checkpoint_every=1)
KILLS, STEPS = 20, 200
_OPTIONS = (
    "--population 100 --cohort-size 4 --group-size 2 --l2-clip-norm 1 --delta 1e-5 --model new "
    "--set plan.noise_multiplier=2 --set learning.layers=1 --set learning.width=16 "
    "--set learning.heads=2 --set learning.checkpoint_every=2"
)
TRAIN = _OPTIONS.split()


class Killed(BaseException):
    """Stands for a process that is no more."""


def killed(*arguments, **options):
    raise Killed


def released_step(run):
    """The step of the last checkpoint: the furthest weights that left memory."""
    found = sorted((run / "checkpoints").glob("step-*"))
    return int(found[-1].stem.removeprefix("step-")) if found else 0


def require_charged(run, plan_steps, *, at_least):
    """The checker: what was released was charged before, nothing charged is ever forgotten."""
    charged = attempts(run) if (run / "ledger.jsonl").exists() else 0
    assert released_step(run) <= charged, "released more than was charged"
    assert at_least <= charged <= plan_steps
    return charged


@pytest.mark.slow
def test_invariant_7_twenty_kills_at_random_moments_and_the_run_ends_as_planned(store, tmp_path):
    run = tmp_path / "run"
    command = ["train", str(store.path), "--out", str(run), "--steps", str(STEPS), *TRAIN]
    start(["--version"]).join()  # what loads torch is not what is measured
    began, process = time.monotonic(), start(command)
    while not (run / "ledger.jsonl").exists():
        assert process.exitcode in (None, 0)
        time.sleep(0.01)
    startup = time.monotonic() - began
    charged = kills = 0
    while process.exitcode is None:
        process.join(random.uniform(0, startup + 0.3) if kills < KILLS else None)
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
            charged = require_charged(run, STEPS, at_least=charged)
            process = start([*command, "--resume"])
    assert process.exitcode == 0
    assert kills >= KILLS / 2
    assert require_charged(run, STEPS, at_least=charged) == STEPS
    assert not list(run.rglob(".partial*"))
    plan = uls_plan(steps=STEPS, cohort_size=4, group_size=2, l2_clip_norm=1.0)
    found = claim(run / "ledger.jsonl")
    assert found.complete
    assert found.guarantee == plan.guarantee() == claim(store.path).guarantee
    assert lines(run / "ledger.jsonl")[-1]["kind"] == "finish"


@pytest.mark.parametrize("twin", [False, True], ids=["honest", "twin that does not ask whose"])
def test_invariant_13_a_checkpoint_of_another_run_is_refused(store, stopped, monkeypatch, twin):
    """Its weights have a price of their own, of which this run's ledger says nothing."""
    run, other = stopped(PLAN, EACH_STEP, 2), stopped(PLAN, EACH_STEP, 4, name="other")
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(other / "checkpoints", run / "checkpoints")
    if twin:
        monkeypatch.setattr(Checkpoints, "_is_ours", lambda *whatever: True)
        train(store, PLAN, EACH_STEP, out=run, options=RESUMED)
        assert claim(run).complete
        return
    with pytest.raises(FailureError, match="is not of this run"):
        train(store, PLAN, EACH_STEP, out=run, options=RESUMED)
    assert released_step(run) == 3, "nothing was taken from it, and nothing removed"


# The beginning and the end.


def test_a_kill_before_the_store_was_told_of_the_end_is_mended_by_resuming(
    store, tmp_path, monkeypatch
):
    folder = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(permitted_lines, "is_new", unwritten(Settle, then=killed))
        with pytest.raises(Killed):
            train(store, PLAN, CONFIG, out=folder.path)
    history = StoreLedger(store.path).history()
    assert is_finished(folder.path)
    assert (set(history.settled), history.released) == (set(), [])
    before = folder.ledger.read_bytes()
    assert train(store, PLAN, CONFIG, out=folder.path, options=RESUMED) is None
    assert folder.ledger.read_bytes() == before, "no step was taken"
    history = StoreLedger(store.path).history()
    (released,) = history.released
    assert set(history.settled) == {RunRecord.read(folder.path).run_id}
    assert released.weights == digest_of(folder.model)
    assert released.lineage == claim(folder.path).lineage.plain
    with pytest.raises(UseError, match="finished"):
        train(store, PLAN, CONFIG, out=folder.path, options=RESUMED)
    assert StoreLedger(store.path).history().lines == history.lines
    assert claim(store.path).complete


SIX = uls_plan(steps=6)
RARELY = replace(CONFIG, checkpoint_every=1000, checkpoint_seconds=1e6)


class SignalIn(Progress):
    """Sends a signal in the middle of a step: when the gradient of ``step`` is computed."""

    def __init__(self, monkeypatch, step, number=signal.SIGINT):
        self._rate, self._step, self._number = loop.learning_rate, step, number
        monkeypatch.setattr(loop, "learning_rate", self._send)

    def _send(self, config, *, step, steps):
        if step == self._step:
            os.kill(os.getpid(), self._number)
        return self._rate(config, step=step, steps=steps)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_invariant_7_the_charged_step_is_in_a_checkpoint_and_resume_goes_on(
    store, tmp_path, monkeypatch, number
):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        SignalIn(patch, 3, number)
        with pytest.raises(Interrupted, match="interrupted after step 3 of 6; go on") as caught:
            train(store, SIX, RARELY, out=run)
    assert caught.value.resume
    assert released_step(run) == attempts(run) == 3
    assert not are_held()
    train(store, SIX, RARELY, out=run, options=RESUMED)
    assert attempts(run) == 6
    assert claim(run).guarantee == SIX.guarantee() == claim(store.path).guarantee


def test_invariant_7_twin_an_interrupt_that_does_not_wait_loses_the_step(
    store, tmp_path, monkeypatch
):
    """The same signal without the block that holds it back: charged, computed, and thrown away."""
    monkeypatch.setattr(loop.interrupts, "held", lambda: nullcontext(loop.interrupts.Held()))
    SignalIn(monkeypatch, 3)
    with pytest.raises(Interrupted, match="at once"):
        train(store, SIX, RARELY, out=tmp_path / "run")
    assert attempts(tmp_path / "run") == 3
    assert released_step(tmp_path / "run") < 3


def test_a_loop_of_ones_own_hears_it_between_two_steps_and_saves(begin, tmp_path):
    with begin(SIX) as private:
        model = private._of.model
        try:
            for step in private:
                if step.number == 2:
                    os.kill(os.getpid(), signal.SIGINT)
                before = weights(model)
                private._of.optimizer.step()
        except userdp.Interrupted as interrupt:
            place, kept = interrupt.place, weights(model)
    assert place == "after step 2 of 6"
    assert not torch.equal(kept, before)
    assert attempts(tmp_path / "run") == 2
    assert not are_held()
    with begin(SIX, model=model, resume=True) as private:
        take(private)
    assert attempts(tmp_path / "run") == 6


def test_checkpoints_come_by_steps_or_by_the_clock(tmp_path):
    now, model = 0.0, torch.nn.Linear(2, 2)
    average = WeightAverage(model, None)
    times = Checkpoints(tmp_path, "ab12", model, sgd(model), average, clock=lambda: now)
    assert times.due(1)
    times.save(1)
    assert [times.due(step) for step in (2, 50, 51)] == [False, True, False]
    now = 60.0
    assert times.due(52)
    now = 61.0
    times.save(52)
    assert not times.due(53)
    now = 121.0
    assert times.due(55)
